"""The random generators that a sampler draws from: found, saved as JSON values, and set again."""

from __future__ import annotations

import base64
import random
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.errors import NotResumableError, StateMismatchError
from twinkle_data.sources.parts import objects_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


def generators_in(value: object, enter: Callable[[Any], bool] | None = None) -> list[Any]:
    """The generators of torch, numpy and `random` that an object holds, each once, the nearest first.

    Args:
        value: The object.
        enter: Whether to look into an object; without it, datasets are left out.
    """
    found = [one for one in objects_in(value, enter or _is_no_dataset) if is_generator(one)]
    inner = {id(one.bit_generator) for one in found if isinstance(one, np.random.Generator)}
    return [one for one in found if id(one) not in inner]


def is_generator(value: object) -> bool:
    """Whether it is a generator of torch, numpy or `random`."""
    import torch

    kinds = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
    return isinstance(value, kinds)


def saved(generators: Iterable[Any]) -> list[Any]:
    """The states of generators as JSON values.

    Raises:
        NotResumableError: One has no state, as `random.SystemRandom`.
    """
    return [[type(one).__name__, _state(one)] for one in generators]


def restore(generators: Sequence[Any], states: Sequence[Any]) -> None:
    """Set saved states.

    Raises:
        StateMismatchError: The states are of other generators.
    """
    here, there = [type(one).__name__ for one in generators], [name for name, _ in states]
    if here != there:
        raise StateMismatchError(
            f"the state holds generators {there}, this sampler draws from {here}; build the sampler as it was saved"
        )
    for one, (_, state) in zip(generators, states, strict=True):
        _set(one, state)


def _is_no_dataset(value: Any) -> bool:
    """Whether it may decide an order: what a dataset draws for its samples is another matter."""
    return isinstance(value, (list, tuple, dict)) or not hasattr(type(value), "__getitem__")


def _state(one: Any) -> Any:
    import torch

    if isinstance(one, torch.Generator):
        return base64.b64encode(one.get_state().numpy().tobytes()).decode()
    if isinstance(one, random.Random):
        try:
            version, words, gauss = one.getstate()
        except NotImplementedError:
            raise NotResumableError(
                f"the sampler draws from a {type(one).__name__}, which has no state to save; use random.Random(seed), "
                "or save at the end of an epoch with a sampler that draws by epoch"
            ) from None
        return [version, list(words), gauss]
    if isinstance(one, np.random.RandomState):
        return _plain(one.get_state(legacy=False))
    return _plain((one.bit_generator if isinstance(one, np.random.Generator) else one).state)


def _set(one: Any, state: Any) -> None:
    import torch

    if isinstance(one, torch.Generator):
        one.set_state(torch.frombuffer(bytearray(base64.b64decode(state)), dtype=torch.uint8))
    elif isinstance(one, random.Random):
        version, words, gauss = state
        one.setstate((version, tuple(words), gauss))
    elif isinstance(one, np.random.RandomState):
        one.set_state(_numpys(state))
    else:
        (one.bit_generator if isinstance(one, np.random.Generator) else one).state = _numpys(state)


def _plain(state: Any) -> Any:
    """A state of numpy's with lists in place of arrays."""
    if isinstance(state, dict):
        return {name: _plain(part) for name, part in state.items()}
    if isinstance(state, np.ndarray):
        return {"array": state.tolist(), "dtype": state.dtype.name}
    return state.item() if isinstance(state, np.generic) else state


def _numpys(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array", "dtype"}:
        return np.array(state["array"], dtype=state["dtype"])
    return {name: _numpys(part) for name, part in state.items()}
