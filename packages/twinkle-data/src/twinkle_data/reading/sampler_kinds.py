"""Kinds of samplers: those of single indices and of lists, torch's own, and those that wrap others."""

from __future__ import annotations

import random
from collections.abc import Iterator
from operator import index
from typing import TYPE_CHECKING, Any

from twinkle_data.order.generator_states import restore, saved
from twinkle_data.reading.generators import GlobalGenerators

if TYPE_CHECKING:
    from twinkle_data.order.moving_parts import MovingParts


def with_inner(sampler: Any) -> list[Any]:
    """The sampler and those that it wraps, the outermost first."""
    inner = getattr(sampler, "sampler", None)
    return [sampler] if inner is None else [sampler, *with_inner(inner)]


def is_torchs_batched(sampler: object) -> bool:
    """Whether it is torch's BatchSampler."""
    from torch.utils.data import BatchSampler

    return isinstance(sampler, BatchSampler)


def is_of_torch(sampler: object) -> bool:
    """Whether a sampler, and those that it wraps, are torch's or plain values, which change nothing on themselves."""
    kinds = [type(one).__module__ for one in with_inner(sampler)]
    return all(
        kind == "builtins" or kind.startswith(("torch.utils.data", "numpy")) or kind == "torch" for kind in kinds
    )


def is_batched(sampler: Any, generators: list[Any], parts: MovingParts) -> bool:
    """Whether it yields lists; of a sampler that has a `batch_size` and is not torch's, the first element decides.

    Args:
        sampler: The sampler.
        generators: Its generators; what the first element draws from them is put back.
        parts: Its attributes; what the first element changes of them is put back.
    """
    if isinstance(sampler, (list, tuple)):
        return bool(sampler) and isinstance(sampler[0], (list, tuple))
    if not hasattr(sampler, "batch_size") or isinstance(sampler, Iterator):
        return False
    if type(sampler).__module__.startswith("torch.utils.data"):
        return is_torchs_batched(sampler)
    # Looking draws nothing: what the first element draws is put back.
    states = saved(generators) if have_states(generators) else None
    program = GlobalGenerators()
    program.take()
    try:
        with parts.kept():
            first = next(iter(sampler), 0)
    finally:
        program.put_back()
        if states is not None:
            restore(generators, states)
    if getattr(first, "ndim", 0):
        return True
    try:
        index(first)
    except TypeError:
        return True
    return False


def have_states(generators: list[Any]) -> bool:
    """Whether there are generators, and all of them have a state."""
    return bool(generators) and not any(isinstance(one, random.SystemRandom) for one in generators)
