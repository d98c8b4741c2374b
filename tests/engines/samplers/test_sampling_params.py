"""Parameters of sampling: numbers of any library, and refusals by name."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from twinkle.engines import SamplingParams


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ({"temperature": 2}, {"temperature": 2.0}),
        ({"temperature": np.float32(0.5), "top_p": np.float64(1)}, {"temperature": 0.5, "top_p": 1.0}),
        ({"min_p": torch.tensor(0.5), "top_k": torch.tensor(3)}, {"min_p": 0.5, "top_k": 3}),
        ({"top_k": np.int64(5), "n": np.uint8(2), "max_new_tokens": 1e2}, {"top_k": 5, "n": 2, "max_new_tokens": 100}),
        ({"seed": np.int32(7)}, {"seed": 7}),
        ({"seed": 7.0, "n": np.array(3)}, {"seed": 7, "n": 3}),
        ({"stop": "x"}, {"stop": ("x",)}),
        ({"stop": np.array(["x", "yy"])}, {"stop": ("x", "yy")}),
        ({"stop": None}, {"stop": ()}),
        ({"skip_special_tokens": np.bool_(False)}, {"skip_special_tokens": False}),
    ],
)
def test_numbers_of_any_library_are_pythons(given: dict[str, Any], plain: dict[str, Any]) -> None:
    made = SamplingParams(**given)
    assert made == SamplingParams(**plain) == pickle.loads(pickle.dumps(made)) == replace(made)
    for name, value in plain.items():
        assert type(getattr(made, name)) is type(value)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": np.inf},
        {"top_p": 0},
        {"min_p": 2},
        {"top_k": -1},
        {"n": 0},
        {"max_new_tokens": 0},
        {"stop": ("",)},
    ],
)
def test_params_out_of_range_are_errors(options: dict[str, Any]) -> None:
    (field,) = options
    with pytest.raises(ValueError, match=f"{field} is"):
        SamplingParams(**options)


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("temperature", "top_p", "min_p") for value in ("0.7", None, True, [1.0], 1j)),
        *({name: value} for name in ("top_k", "n", "max_new_tokens", "seed") for value in ("3", 1.5, True, [1])),
        {"stop": 3},
        {"stop": [3]},
        {"skip_special_tokens": 1},
    ],
)
def test_other_types_are_refused_by_name(options: dict[str, Any]) -> None:
    (field,) = options
    with pytest.raises(TypeError, match=field):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("name", "use"), [("max_tokens", "max_new_tokens"), ("temprature", "temperature"), ("x", "n,")]
)
def test_names_from_elsewhere_are_told_ours(name: str, use: str) -> None:
    options: dict[str, Any] = {name: 1}
    with pytest.raises(TypeError, match=f"no {name}: use .*{use}"):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"temperature": 0.5}, False),
        ({"top_k": 1}, True),
        ({"top_p": 0.999}, True),
        ({"min_p": 1e-3, "temperature": 2}, True),
        ({"top_k": 5, "top_p": 0.5, "temperature": 0}, False),
    ],
)
def test_what_draws_from_a_part_of_the_tokens_is_truncated(options: dict[str, Any], expected: bool) -> None:
    assert SamplingParams(**options).is_truncated is expected
