"""Engines that come one after the other in a process: what they draw, and how long a call may take."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tiny_engine import ENGINE
from tiny_models import sgd

import twinkle
from twinkle.engines import Rollouts, SamplingParams, TransformersModel, VLLMSampler, mismatch


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


def test_a_call_beyond_its_time_is_an_error_and_the_engine_goes_on(folder: str) -> None:
    endless = SamplingParams(n=64, max_new_tokens=380, temperature=2.0, seed=0)
    with twinkle.session("local", seed=0):
        sampler: Any = VLLMSampler(folder, timeout=0.2, **ENGINE)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"timeout=0\.2"):
            sampler.sample([[3, 5, 7]] * 64, endless)
        assert time.monotonic() - began < 60
        deadline = time.monotonic() + 120
        while True:  # nothing of the call is left at work beside the next one
            try:
                rollouts = sampler.sample([[3]], SamplingParams(temperature=0, max_new_tokens=1))
                break
            except TimeoutError:
                assert time.monotonic() < deadline
        trainer: Any = TransformersModel(folder, optimizer=sgd)
        assert mismatch(trainer.annotate(rollouts, "proximal"))["worst"] < 1.001
    with pytest.raises(ValueError, match="timeout is above 0"):
        VLLMSampler(folder, timeout=0)
