"""Failures of one rank that all ranks of the default process group learn of, before they wait for each other."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def agreed(what: str) -> Iterator[None]:
    """A block of work without collectives: all ranks leave it with an error where one has failed in it.

    Args:
        what: The work, for the error, as in "writing the schedule".

    Raises:
        Exception: The rank's own.
        RuntimeError: Another rank has failed; the error names it. ValueError where its error is one.
    """
    import torch.distributed as dist

    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        failures: list[tuple[str, bool] | None] = [None] * dist.get_world_size()
        mine = None if failure is None else (f"{type(failure).__name__}: {failure}", isinstance(failure, ValueError))
        dist.all_gather_object(failures, mine)
    else:
        failures = []
    if failure is not None:
        if failures:
            failure.add_note(f"{what} failed on rank {dist.get_rank()}")
        raise failure
    for rank, other in enumerate(failures):
        if other is not None:
            raise (ValueError if other[1] else RuntimeError)(f"{what} failed on rank {rank}: {other[0]}")


@contextmanager
def torch_checkpoint(what: str) -> Iterator[None]:
    """A block that calls torch's distributed checkpoint, whose exceptions are no `Exception`.

    Args:
        what: The work, for the error.

    Raises:
        RuntimeError: It failed on some ranks; the error names the first.
    """
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (failure, _) = min(error.failures.items())
        raise RuntimeError(f"{what} failed on rank {rank}: {type(failure).__name__}: {failure}") from failure
