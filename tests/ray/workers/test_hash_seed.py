"""All workers hash texts alike, so that a set of names has one order on all hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_ray.cluster.environment import HASH_SEED, hash_seed, node_variable
from twinkle_remote import on, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAMES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@remote_class()
class Names:
    @remote_function(dispatch="all", collect="none")
    def order(self) -> tuple[str | None, list[str]]:
        return os.environ.get("PYTHONHASHSEED"), list(set(_NAMES))


@pytest.mark.parametrize(
    ("environment", "seed"), [({}, "7"), ({"PYTHONHASHSEED": "random"}, "7"), ({"PYTHONHASHSEED": "3"}, "3")]
)
def test_it_is_the_drivers_or_the_sessions(environment: Mapping[str, str], seed: str) -> None:
    assert hash_seed(environment, 7) == seed


@pytest.mark.usefixtures("ray_session")
def test_sets_have_one_order_on_all_workers() -> None:
    names: list[Any] = [on(group).create(Names).order() for group in ("four", "two")]
    found = [each for order in names for each in order]
    seed = node_variable(HASH_SEED)
    assert seed is not None and seed.isdecimal()
    code = f"print(list(set({_NAMES!r})))"
    told = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True)
    assert {(each[0], str(each[1])) for each in found} == {(seed, told.stdout.strip())}
