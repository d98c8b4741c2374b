"""Code of several data ranks in one process, one rank after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_mesh import use_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_data import Batch
    from twinkle_mesh import DeviceMesh


def on_ranks(mesh: DeviceMesh, job: Callable[..., Any], *values: Sequence[Any]) -> list[Any]:
    """What a job gives on one rank of each data rank, in data order.

    Args:
        mesh: Its `collect_ranks` run the job.
        job: Gets one of each of `values`.
        values: One for each data rank.
    """
    found = []
    for rank, *own in zip(mesh.collect_ranks, *values, strict=True):
        with use_rank(rank):
            found.append(job(*own))
    return found


def rows_of(batches: Iterable[Batch[Any]]) -> list[Any]:
    """The samples of batches, without padding."""
    return [sample for batch in batches for sample, valid in zip(batch, batch.valid, strict=True) if valid]
