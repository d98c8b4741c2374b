"""Ranks that do something else, stay away or are lost: an error within the deadline that names them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from twinkle_ray.collective import CollectiveMismatchError, CollectiveTimeoutError, MeshCollective

pytestmark = pytest.mark.processes

Runs = Mapping[tuple[Any, ...], Future[list[Any]]]
AT_A_TIME = 3
OPERATIONS = ("barrier", "all_reduce", "objects")


def build(rank: int, **options: Any) -> MeshCollective:
    return MeshCollective(rank, 4, 2, rank % 2, "cpu", **options)


def differs(rank: int, what: str) -> tuple[float, str]:
    whole = build(rank, timeout=5.0)
    whole.barrier()
    kind = torch.float64 if rank == 1 else torch.float32
    operations: dict[str, Callable[[], object]] = {
        "shape": lambda: whole.all_reduce(torch.zeros(300 if rank == 1 else 4000)),
        "dtype": lambda: whole.all_reduce(torch.zeros(1000, dtype=kind)),
        "source": lambda: whole.broadcast(torch.zeros(1000), source_rank=int(rank > 0)),
        "operation": whole.barrier if rank == 0 else lambda: whole.all_reduce(torch.zeros(10)),
        "objects": (lambda: whole.all_gather_objects(rank)) if rank == 0 else lambda: whole.all_reduce(torch.zeros(10)),
    }
    began = time.monotonic()
    with pytest.raises(CollectiveMismatchError) as caught:  # noqa: PT012  either may raise
        operations[what]()
        whole.barrier()  # a rank that has its tensor from the source that it named goes on
    return time.monotonic() - began, str(caught.value)


def stays_away(rank: int, where: str) -> str:
    whole = build(rank, debug=True, timeout=2.0)
    if rank == 2:
        return ""
    view = whole.local if where == "local" else whole
    if rank < 2 and where == "local":
        view.barrier()
        return ""
    with pytest.raises(CollectiveTimeoutError) as caught:
        view.barrier()
    return str(caught.value)


def loses_a_peer(rank: int, how: signal.Signals, operation: str) -> tuple[float, str]:
    whole = build(rank, timeout=3.0)
    whole.barrier()
    if rank == 2:
        os.kill(os.getpid(), how)
        return 0.0, ""
    operations: dict[str, Callable[[], object]] = {
        "barrier": whole.barrier,
        "objects": lambda: whole.all_gather_objects(rank),
        "all_reduce": lambda: whole.all_reduce(torch.zeros(1000)),
    }
    began = time.monotonic()
    with pytest.raises(CollectiveTimeoutError) as caught:
        operations[operation]()
    return time.monotonic() - began, str(caught.value)


@pytest.fixture(scope="module")
def begun(run_ranks: Callable[..., list[Any]]) -> Iterator[Runs]:
    """What runs of four ranks give, by function and arguments: they wait for their deadlines beside each other."""
    kinds = ("objects", "operation", "source", "shape", "dtype")
    runs: list[tuple[Any, ...]] = [(loses_a_peer, signal.SIGSTOP, operation) for operation in OPERATIONS]
    runs += [(differs, what) for what in kinds]
    runs += [(loses_a_peer, signal.SIGKILL, operation) for operation in OPERATIONS]
    runs += [(stays_away, where) for where in ("whole", "local")]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        yield {run: pool.submit(run_ranks, 4, *run, lost=[2] if run[0] is loses_a_peer else []) for run in runs}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "shape",
            "rank(s) [0, 2, 3]: all_reduce RedOpType.SUM (4000,) float32; "
            "rank(s) [1]: all_reduce RedOpType.SUM (300,) float32",
        ),
        (
            "dtype",
            "rank(s) [0, 2, 3]: all_reduce RedOpType.SUM (1000,) float32; "
            "rank(s) [1]: all_reduce RedOpType.SUM (1000,) float64",
        ),
        (
            "source",
            "rank(s) [0]: broadcast from 0 (1000,) float32; rank(s) [1, 2, 3]: broadcast from 1 (1000,) float32",
        ),
        ("operation", "rank(s) [0]: barrier; rank(s) [1, 2, 3]: all_reduce RedOpType.SUM (10,) float32"),
        ("objects", "rank(s) [0]: all_gather_objects; rank(s) [1, 2, 3]: all_reduce RedOpType.SUM (10,) float32"),
    ],
)
def test_a_mismatch_is_named_within_the_deadline_without_a_comparison_beforehand(
    begun: Runs, what: str, message: str
) -> None:
    found = [each for each in begun[differs, what].result() if each is not None]  # Gloo ends ranks that get too much
    assert found
    for seconds, text in found:
        assert seconds < 5.0 + 3.0
        assert f"operation 2 of the group [0, 1, 2, 3] is not the same on every rank: {message}" in text


@pytest.mark.parametrize(
    ("where", "waiting", "message"),
    [
        ("whole", [0, 1, 3], "operation 1 of the group [0, 1, 2, 3]): rank(s) [2] did not enter it within 2 s"),
        ("local", [3], "operation 1 of the group [2, 3]): rank(s) [0] did not enter it within 2 s"),
    ],
)
def test_a_missing_rank_is_named_by_its_rank_in_that_collective(
    begun: Runs, where: str, waiting: list[int], message: str
) -> None:
    for rank, text in enumerate(begun[stays_away, where].result()):
        assert message in text if rank in waiting else text == ""


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_peer_is_an_error_within_the_deadline_that_names_it(
    begun: Runs, how: signal.Signals, operation: str
) -> None:
    found = begun[loses_a_peer, how, operation].result()
    assert found[2] is None
    for rank in (0, 1, 3):
        seconds, text = found[rank]
        assert seconds < 8.0
        assert (
            "no answer from rank(s) [2]: dead, stopped or elsewhere; rank 2 last entered operation 1, barrier" in text
        )
