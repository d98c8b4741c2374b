"""Processes with a process group whose streams, samplers or positions differ, which no fingerprint shows."""

from __future__ import annotations

import os
import random
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.data.loading.ranks.rank_processes import found_by_processes

from twinkle_data import DataLoader, DeviceMeshSampler, Shards
from twinkle_data.loading.ranks.steps_on_ranks import is_compared
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MESH = DeviceMesh.from_sizes(dp_size=2)


class Divided:
    """Rows of one rank; a fingerprint does not count numbers of a class of the user's."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self) -> Iterator[int]:
        return iter(range(32)[self.rank :: 2])


class AnyOrder:
    """Rows in another order in each process."""

    def __iter__(self) -> Iterator[int]:
        return iter(random.Random(os.getpid()).sample(range(32), 32))


class LaterOn:
    """Rows that differ from row 16 on."""

    def __iter__(self) -> Iterator[int]:
        return iter([row if row < 16 else row + os.getpid() for row in range(64)])


class Same:
    """Rows that are the same, and draw."""

    def __iter__(self) -> Iterator[float]:
        for _ in range(32):
            yield random.random()


class Ordered:
    """Makes its order at the first row that is read."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.order: list[int] = []

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        self.order = self.order or random.Random(self.seed).sample(range(16), 16)
        return self.order[index]


def rows_of(dataset: Any, **options: Any) -> list[Any]:
    return [row for batch in DataLoader(dataset, batch_size=4, **options) for row in batch]


def moved(loader: Any, epoch: int, steps: int) -> list[Any]:
    loader.set_epoch(epoch)
    return [row for _ in range(steps) for row in next(loader)] + [row for batch in loader for row in batch]


def sampled(sampler: Any, **options: Any) -> list[Any]:
    return list(DeviceMeshSampler(sampler, MESH, **options))


def random_sampler(seed: int | None) -> Any:
    from torch import Generator
    from torch.utils.data import RandomSampler

    return RandomSampler(range(16), generator=None if seed is None else Generator().manual_seed(seed))


ROWS = list(range(16))
DIFFER: dict[str, Callable[[int], Any]] = {
    "a stream divided by rank": lambda rank: rows_of(Divided(rank)),
    "the same in a loader process": lambda rank: rows_of(Divided(rank), num_workers=1, multiprocessing_context="fork"),
    "a stream in any order": lambda rank: rows_of(AnyOrder()),
    "a stream that differs later": lambda rank: rows_of(LaterOn()),
    "a generator of one rank's rows": lambda rank: rows_of(lambda: iter(range(rank, 32, 2))),
    "shards that know the rank": lambda rank: rows_of(
        Shards(lambda shard, offset: range(100 * rank + offset, 100 * rank + 8), 2)
    ),
    "an order that is made while rows are read": lambda rank: rows_of(Ordered(None)),
    "tail": lambda rank: rows_of(ROWS[:14], tail="drop" if rank else "pad"),
    "batch size of a stream": lambda rank: list(DataLoader(Same(), batch_size=4 + 4 * rank)),
    "epoch": lambda rank: moved(DataLoader(ROWS, batch_size=4, shuffle=True), rank, 0),
    "mesh": lambda rank: rows_of(
        range(16), device_mesh=DeviceMesh.from_ranks([rank, 1 - rank], ("dp",)), fingerprint="one"
    ),
    "order of a list of indices": lambda rank: sampled(ROWS[:: 1 - 2 * rank]),
    "length of a list of indices": lambda rank: sampled(ROWS[: 16 - 4 * rank]),
    "seed of a sampler": lambda rank: sampled(random_sampler(None), seed=rank),
    "generator of a sampler": lambda rank: sampled(random_sampler(rank)),
    "batches of a sampler": lambda rank: sampled([ROWS[:8], ROWS[8:]][:: 1 - 2 * rank]),
}
ALIKE: dict[str, Callable[[int], list[Any]]] = {
    "stream": lambda rank: rows_of(Same()),
    "stream in a loader process": lambda rank: rows_of(Same(), num_workers=1, multiprocessing_context="fork"),
    "named stream": lambda rank: rows_of(lambda: iter(range(100 * rank, 100 * rank + 16)), fingerprint="rows"),
    "an order of a fixed seed": lambda rank: rows_of(Ordered(7)),
    "moved": lambda rank: moved(DataLoader(list(range(800)), batch_size=2), 3, 9),
    "random sampler": lambda rank: sampled(random_sampler(None)),
    "sampler with a generator": lambda rank: sampled(random_sampler(7)),
    "batches": lambda rank: sampled([ROWS[:8], ROWS[8:]]),
}


def work(rank: int, port: int) -> dict[str, Any]:
    import torch.distributed as dist

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    found: dict[str, Any] = {}
    for kind, body in {**DIFFER, **ALIKE}.items():
        random.seed(rank)
        try:
            found[kind] = body(rank)
        except Exception as error:  # the test looks at its type
            found[kind] = f"{type(error).__name__}: {error}"
        dist.barrier()
    dist.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def ranks(fork_server: None) -> list[dict[str, Any]]:
    """What each of two processes was given, or its error."""
    with ExitStack() as probe:
        port = probe.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    return found_by_processes(work, 2, port)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DIFFER)
def test_ranks_that_read_other_rows_raise(ranks: list[dict[str, Any]], kind: str) -> None:
    both = [found[kind] for found in ranks]
    wrong = [isinstance(one, str) and one.startswith("RanksDifferError") for one in both]
    # A rank that is ahead has read on, where the rows differ later.
    assert any(wrong) if kind == "a stream that differs later" else all(wrong), both


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALIKE)
def test_ranks_that_read_the_same_pass(ranks: list[dict[str, Any]], kind: str) -> None:
    both = [found[kind] for found in ranks]
    assert all(isinstance(one, list) and one for one in both), both
    assert len(both[0]) == len(both[1])
    assert not {str(row) for row in both[0]} & {str(row) for row in both[1]}, both


def test_the_first_steps_are_compared_and_few_later_ones() -> None:
    assert [step for step in range(200) if is_compared(step)] == [0, 1, 2, 4, 8, 16, 32, 64, 128, 192]
