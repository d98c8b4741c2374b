"""A state of the global generators: read, set again, and compared library by library."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from twinkle_remote.random_state import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DRAWS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy": np.random.standard_normal,  # it saves every second deviate
    "torch": lambda: torch.rand(()).item(),
}


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = RandomState().read()
    yield
    before.install()


@pytest.mark.parametrize("accelerators", [True, False])
def test_a_state_that_is_set_again_gives_the_same_draws(accelerators: bool) -> None:
    DRAWS["numpy"]()
    state = RandomState(accelerators=accelerators).read()
    first = [draw() for draw in DRAWS.values()]
    state.install()
    assert [draw() for draw in DRAWS.values()] == first


@pytest.mark.parametrize("accelerators", [True, False])
@pytest.mark.parametrize("library", DRAWS)
def test_only_the_library_that_was_drawn_from_has_moved(library: str, accelerators: bool) -> None:
    state = RandomState(accelerators=accelerators).read()
    assert state.moved() == []
    DRAWS[library]()
    assert state.moved() == [library]


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_numpy_may_have_a_bit_generator_of_another_kind(kind: Any) -> None:
    program = mtrand.get_bit_generator()
    mtrand.set_bit_generator(kind(5))
    try:
        state = RandomState().read()
        first = np.random.random()
        assert state.moved() == ["numpy"]
        state.install()
        assert state.moved() == []
        assert np.random.random() == first
    finally:
        mtrand.set_bit_generator(program)
