"""The meta-package: every name of it is the name of a package, and importing it loads nothing heavy."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

import twinkle
import twinkle_engines

if TYPE_CHECKING:
    from types import ModuleType


def names_of(package: ModuleType) -> list[str]:
    names: list[str] = vars(package)["__all__"]
    return names


def test_every_name_is_that_of_its_package() -> None:
    import twinkle_data
    import twinkle_mesh
    import twinkle_ray
    import twinkle_remote

    for name in names_of(twinkle):
        homes = [home for home in (twinkle_mesh, twinkle_remote, twinkle_data, twinkle_ray) if name in names_of(home)]
        assert len(homes) == 1, name
        assert getattr(twinkle, name) is getattr(homes[0], name)


def test_names_are_sorted_and_listed() -> None:
    assert sorted(names_of(twinkle)) == names_of(twinkle)
    assert set(names_of(twinkle)) <= set(dir(twinkle))


@pytest.mark.parametrize(
    "module", ["twinkle", "twinkle.cli", "twinkle.engines", "twinkle_engines", "twinkle_mesh", "twinkle_remote"]
)
def test_import_is_light(module: str) -> None:
    program = f"import json, sys, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, check=True, timeout=60)
    assert not {"torch", "ray", "numpy"} & set(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("name", "home"),
    [
        ("twinkle.engines", "twinkle_engines"),
        ("twinkle.engines.losses", "twinkle_engines.algorithms.losses"),
    ],
)
def test_names_of_the_engines_are_those_of_their_package(name: str, home: str) -> None:
    here, there = import_module(name), import_module(home)
    own = {"rollout_page"} if name == "twinkle.engines" else set()  # of the command, which draws the page
    assert set(here.__all__) == {*there.__all__, *own}
    for each in there.__all__:
        assert getattr(here, each) is getattr(there, each)


def test_a_class_of_the_engines_is_pickled_by_the_one_place_where_it_is_defined() -> None:
    from twinkle.engines import Rollouts

    rollouts = Rollouts(ids=[[1, 2]])
    assert pickle.loads(pickle.dumps(rollouts)) == rollouts
    for name in names_of(twinkle_engines):
        one = getattr(twinkle_engines, name)
        assert getattr(import_module(one.__module__), name) is one
