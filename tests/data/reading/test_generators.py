"""Global generators that samples draw from by name: the others are left alone, and draws from them are warned of."""

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand
from tests.data.reading.augmented import Augmented, Draws, epoch_of

LIBRARIES = ("random", "numpy", "torch")


class Drawing(Augmented):
    """Draws from some of the generators.

    Args:
        libraries: Their names.
        first: The first sample that draws.
    """

    def __init__(self, *libraries: str, first: int = 0) -> None:
        self.libraries = libraries
        self.first = first

    def __getitem__(self, index: int) -> Draws:
        draws: Any = {"random": random.random, "numpy": np.random.normal, "torch": lambda: torch.rand(())}
        drawn = [float(draws[name]()) if name in self.libraries else 0.0 for name in LIBRARIES]
        return (index, *drawn) if index >= self.first else (index, 0.0, 0.0, 0.0)  # type: ignore[return-value]  # three numbers


class Together(Drawing):
    def __getitems__(self, indices: list[int]) -> list[Draws]:
        return [self[index] for index in indices]


def states() -> list[object]:
    numpys = mtrand.get_bit_generator().state
    return [random.getstate(), repr(numpys), torch.get_rng_state().tolist()]


@pytest.mark.parametrize("kind", [Drawing, Together])
@pytest.mark.parametrize("names", [("random",), ("numpy",), ("torch",), ("torch", "random"), LIBRARIES, ()])
def test_libraries_that_are_named_draw_as_with_all_of_them(kind: type[Drawing], names: tuple[str, ...]) -> None:
    reference = epoch_of(kind(*names))
    random.seed(3)
    before = states()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for form in (names, [*names], set(names)):
            assert epoch_of(kind(*names), sample_seeds=form) == reference
            assert epoch_of(kind(*names), sample_seeds=form, batch_size=12, shuffle=True) == reference
        assert epoch_of(kind(*names), sample_seeds=names, num_workers=1, batch_size=8) == reference
    assert states() == before


@pytest.mark.parametrize("left_out", LIBRARIES)
@pytest.mark.parametrize("first", [0, 12])
@pytest.mark.parametrize("kind", [Drawing, Together])
def test_a_draw_from_a_library_that_is_left_out_is_warned_of(kind: type[Drawing], first: int, left_out: str) -> None:
    named = tuple(name for name in LIBRARIES if name != left_out)
    with pytest.warns(RuntimeWarning, match=f"global generator of {left_out} was drawn from"):
        epoch_of(kind(*LIBRARIES, first=first), sample_seeds=named)


def test_collate_draws_from_the_named_libraries() -> None:
    def collate(batch: Any) -> Any:
        return [(row[0], random.random(), 0.0, 0.0) for row in batch]

    reference = epoch_of(Drawing(), collate_fn=collate)
    assert epoch_of(Drawing(), collate_fn=collate, sample_seeds=("random",)) == reference


def test_unknown_libraries_are_refused() -> None:
    with pytest.raises(ValueError, match="jax"):
        epoch_of(Drawing(), sample_seeds=("jax",))
    with pytest.raises(TypeError, match="sample_seeds"):
        epoch_of(Drawing(), sample_seeds="numpy")
