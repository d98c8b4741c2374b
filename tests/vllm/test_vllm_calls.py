"""Engines that come one after the other in a process: what they draw, and how long a call may take."""

from __future__ import annotations

from typing import Any

from tiny_engine import ENGINE

import twinkle
from twinkle.engines import Rollouts, SamplingParams, VLLMSampler


def ids_of(rollouts: Rollouts) -> list[list[int]]:
    return [row.tolist() for row in rollouts.ids]


def test_two_sessions_draw_alike_by_seed_and_two_samplers_do_not(folder: str) -> None:
    params = SamplingParams(n=2, max_new_tokens=16, temperature=2.0)

    def draw() -> str:
        made: Any = VLLMSampler(folder, **ENGINE)
        found = str(ids_of(made.sample([[3, 5]], params)))
        twinkle.release(made)
        return found

    with twinkle.session("local", seed=0):
        first, second = draw(), draw()
    with twinkle.session("local", seed=0):
        again = draw()
    with twinkle.session("local", seed=1):
        other = draw()
    assert first == again and len({first, second, other}) == 3
