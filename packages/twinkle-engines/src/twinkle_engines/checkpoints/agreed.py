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
        RuntimeError: Another rank has failed; the error names it.
    """
    import torch.distributed as dist

    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        failures: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(failures, None if failure is None else f"{type(failure).__name__}: {failure}")
    else:
        failures = []
    if failure is not None:
        if failures:
            failure.add_note(f"{what} failed on rank {dist.get_rank()}")
        raise failure
    for rank, text in enumerate(failures):
        if text is not None:
            raise RuntimeError(f"{what} failed on rank {rank}: {text}")


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
