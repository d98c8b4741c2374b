"""Processes with a process group that read different datasets, and those that read the same."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from tests.data.rank_processes import found_by_processes
from tests.data.test_who import NAMES as VARIABLES
from tests.data.test_who import PROGRAMS, check, drawn, outcome, reads

from twinkle_data import DataLoader, Mixture
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

NAMES = [f"part-{number:02}" for number in range(16)]


class Files:
    """A dataset of the program's own, of which nobody sees the rows beforehand."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return self.names[index]


def stream(rows: list[str]) -> Any:
    def rows_of_a_stream() -> Any:
        yield from rows

    return rows_of_a_stream


DIFFERENT: dict[str, Callable[[int], Any]] = {
    "order": lambda rank: NAMES[::-1] if rank else NAMES,
    "length": lambda rank: NAMES * (1 + rank),
    "columns": lambda rank: {"a": NAMES[rank:] + NAMES[:rank]},
    "parts": lambda rank: Mixture({"a": NAMES[: 8 - rank], "b": NAMES[: 8 + rank]}),
    "files": lambda rank: Files(NAMES[::-1] if rank else NAMES),
    "a stream divided by rank": lambda rank: stream(NAMES[rank::2] * 2),
}


def names_of(dataset: Any, **options: Any) -> Any:
    return outcome(lambda: [row for batch in DataLoader(dataset, batch_size=4, **options) for row in batch])


def different(rank: int) -> Any:
    found = {kind: names_of(build(rank)) for kind, build in DIFFERENT.items()}
    found["seed"] = names_of(NAMES, shuffle=True, seed=rank)
    found["some shuffle"] = names_of(NAMES, shuffle=bool(rank))
    found["own mesh"] = names_of(NAMES[rank:], device_mesh=DeviceMesh.from_sizes(dp_size=2))
    return found


def alike(rank: int) -> Any:
    found = {f"equal {number}": names_of(NAMES, shuffle=True) for number in range(2)}
    found["files"] = names_of(Files(NAMES))
    found["stream"] = names_of(stream(NAMES))
    found["named"] = names_of([*NAMES[:7], f"other {rank}", *NAMES[8:]], fingerprint="names")
    return found


def one_reads_alone(rank: int) -> Any:
    return names_of(NAMES) if rank == 0 else ""


def replicated(rank: int) -> Any:
    return names_of(NAMES, replicate=True) if rank == 0 else ""


def peers(rank: int) -> Any:
    """One of each two ranks that see the same rows reads."""
    return names_of(NAMES, device_mesh=DeviceMesh.from_sizes(dp_size=2, tp_size=2)) if rank % 2 == 0 else []


def programs(rank: int) -> Any:
    """The programs of test_who.py, with a process for each rank."""
    own: Any = {"start": "launcher", "sizes": {"dp_size": 2}, "owned": "made"}
    plans = [drawn(seed)._replace(**own) for seed in range(PROGRAMS // 4)]
    return [(plan, outcome(partial(reads, plan, None))) for plan in plans]


def in_group(body: Callable[[int], Any], rank: int, world: int, port: int, seconds: float = 100) -> Any:
    """Run a body in a process group of its own; the first rank, which has the store, leaves last."""
    import torch.distributed as dist

    method, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world, timeout=limit)
    found = outcome(lambda: body(rank))
    if body is not one_reads_alone:
        dist.barrier()
    dist.destroy_process_group()
    return found


def work(rank: int, ports: list[int]) -> dict[str, Any]:
    for name in VARIABLES:
        os.environ.pop(name, None)
    found = {"peers": in_group(peers, rank, 4, ports[0])}
    if rank < 2:
        found["different"] = in_group(different, rank, 2, ports[1])
        found["alike"] = in_group(alike, rank, 2, ports[2])
        found["replicated"] = in_group(replicated, rank, 2, ports[3])
        found["programs"] = in_group(programs, rank, 2, ports[5])
        found["alone"] = in_group(one_reads_alone, rank, 2, ports[4], seconds=2)
    return found


@pytest.fixture(scope="module")
def ranks(fork_server: None) -> list[dict[str, Any]]:
    """What each of four processes has found."""
    with ExitStack() as probes:
        ports = [probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(6)]
    return found_by_processes(work, 4, ports)


def test_datasets_that_differ_are_an_error_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for found in ranks[:2]:
        for kind, text in found["different"].items():
            assert str(text).startswith("RanksDifferError: data ranks 0 and 1"), (kind, text)


def test_equal_ones_pass(ranks: list[dict[str, Any]]) -> None:
    left, right = (found["alike"] for found in ranks[:2])
    for kind in left:
        assert len(left[kind]) == len(right[kind]) == 8, (kind, left, right)
        assert kind == "named" or sorted(left[kind] + right[kind]) == NAMES
    assert ranks[0]["replicated"] == NAMES


def test_a_rank_that_never_reads_is_an_error_after_the_timeout_of_the_group(ranks: list[dict[str, Any]]) -> None:
    text = ranks[0]["alone"]
    assert text.startswith("RanksDifferError") and "replicate=True" in text


def test_of_peers_one_reader_is_enough(ranks: list[dict[str, Any]]) -> None:
    assert sorted(ranks[0]["peers"] + ranks[2]["peers"]) == NAMES


def test_each_row_comes_once_or_an_error_to_all(ranks: list[dict[str, Any]]) -> None:
    for (plan, one), (_, other) in zip(ranks[0]["programs"], ranks[1]["programs"], strict=True):
        check(plan, [one, other])
