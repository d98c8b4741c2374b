"""Processes with a process group that read different datasets, and those that read the same in their own ways."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.data.loading.ranks.rank_processes import found_by_processes

from twinkle_data import DataLoader, Mixture, Shards
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

NAMES = [f"part-{number:02}" for number in range(16)]
SECONDS = 3.0


def shards(lengths: list[int]) -> Shards:
    return Shards(lambda shard, offset: [shard] * (lengths[shard] - offset), 2, lengths, fingerprint="one")


def stream(rows: list[str]) -> Any:
    def rows_of_a_stream() -> Any:
        yield from rows

    return rows_of_a_stream


DIFFERENT: dict[str, Callable[[int], Any]] = {
    "order": lambda rank: NAMES[::-1] if rank else NAMES,
    "length": lambda rank: NAMES * (1 + rank),
    "row": lambda rank: [*NAMES[:7], f"other {rank}", *NAMES[8:]],
    "columns": lambda rank: {"a": NAMES[rank:] + NAMES[:rank]},
    "parts": lambda rank: Mixture({"a": NAMES[: 8 - rank], "b": NAMES[: 8 + rank]}),
    "shards": lambda rank: shards([8 - rank, 8 + rank]),
}


def names_of(loader: Any) -> list[str]:
    return [row for batch in loader for row in batch]


def told(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # the test looks at its type
        return f"{type(error).__name__}: {error}"


def different(rank: int) -> Any:
    found: dict[str, Any] = {}
    for kind, build in DIFFERENT.items():
        loader: Any = DataLoader(build(rank), batch_size=4, shuffle=True)
        found[kind] = told(lambda: next(loader))  # noqa: B023  # called at once
        if kind == "order":
            found["again"] = told(lambda: next(loader))  # noqa: B023  # called at once
    found["seed"] = told(lambda: names_of(DataLoader(NAMES, batch_size=4, shuffle=True, seed=rank)))
    found["some shuffle"] = told(lambda: names_of(DataLoader(NAMES, batch_size=4, shuffle=bool(rank))))
    found["own mesh"] = told(
        lambda: names_of(DataLoader(NAMES[rank:], batch_size=4, device_mesh=DeviceMesh.from_sizes(dp_size=2)))
    )
    return found


def alike(rank: int) -> Any:
    found: dict[str, Any] = {}
    for number in range(3):
        found[f"equal {number}"] = told(lambda: names_of(DataLoader(NAMES, batch_size=4, shuffle=True)))
    # The third time one rank differs, and reads later.
    time.sleep(0.8 * rank)
    found["differs later"] = told(lambda: names_of(DataLoader(NAMES[rank:], batch_size=4)))
    found["named"] = told(lambda: names_of(DataLoader(DIFFERENT["row"](rank), batch_size=4, fingerprint="names")))
    found["replicate"] = told(lambda: names_of(DataLoader(NAMES[rank:], batch_size=3, replicate=True)))
    found["stream"] = told(lambda: names_of(DataLoader(stream(NAMES), batch_size=4)))
    # Two threads of each process read two loaders, in another order on the other rank.
    loaders = [DataLoader(NAMES, batch_size=4, seed=seed, shuffle=True) for seed in (7, 8)]
    results: dict[int, Any] = {}

    def read(one: int) -> None:
        time.sleep(0.2 * (one ^ rank))
        results[one] = told(lambda: names_of(loaders[one]))

    threads = [threading.Thread(target=read, args=(one,)) for one in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found["first thread"], found["second thread"] = results[0], results[1]
    return found


def one_reads_alone(rank: int) -> Any:
    return told(lambda: names_of(DataLoader(NAMES, batch_size=4))) if rank == 0 else ""


def peers(rank: int) -> Any:
    """Rows differ on one peer only; then one of each two peers reads."""
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    first = told(lambda: names_of(DataLoader(NAMES[rank == 3 :], batch_size=4, device_mesh=mesh)))
    all_read = told(lambda: names_of(DataLoader(NAMES, batch_size=4, device_mesh=mesh)))
    one = told(lambda: names_of(DataLoader(NAMES * 2, batch_size=4, device_mesh=mesh))) if rank % 2 == 0 else []
    return first, all_read, one


def in_group(body: Callable[[int], Any], rank: int, world: int, port: int, seconds: float) -> Any:
    """Run a body in a process group of its own; the first rank, which has the store, leaves last."""
    import torch.distributed as dist

    method, limit = f"tcp://127.0.0.1:{port}", timedelta(seconds=seconds)
    dist.init_process_group("gloo", init_method=method, rank=rank, world_size=world, timeout=limit)
    found = told(lambda: body(rank))
    if body is not one_reads_alone:
        dist.barrier()
    dist.destroy_process_group()
    return found


def work(rank: int, ports: list[int]) -> dict[str, Any]:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    found = {"pair": in_group(different_then_alike, rank, 2, ports[0], 60)} if rank < 2 else {}
    found["peers"] = in_group(peers, rank, 4, ports[1], 300)
    if rank < 2:
        found["alone"] = in_group(one_reads_alone, rank, 2, ports[2], SECONDS)
    return found


@pytest.fixture(scope="module")
def ranks(fork_server: None) -> list[dict[str, Any]]:
    """What each of four processes has found: two of them first, then all, then the first of two."""
    with ExitStack() as probes:
        ports = [probes.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1] for _ in range(3)]
    return found_by_processes(work, 4, ports)


class Broken:
    """Some samples cannot be read."""

    def __init__(self, bad: set[int]) -> None:
        self._bad = bad

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> str:
        if index in self._bad:
            raise ValueError(index)
        return NAMES[index]


def bad_samples(rank: int) -> Any:
    """Two bad samples on each rank: four are accepted, three are not."""
    found = {}
    for most in (4, 3):
        loader: Any = DataLoader(Broken({0, 2, 8, 10}), batch_size=4, on_error="skip", max_bad=most)
        found[most] = told(lambda: [sum(batch.valid) for batch in loader])  # noqa: B023  # called at once
    return found


def different_then_alike(rank: int) -> Any:
    return different(rank), alike(rank), bad_samples(rank)


def test_datasets_that_differ_are_an_error_on_all_ranks_and_equal_ones_pass_in_any_order(
    ranks: list[dict[str, Any]],
) -> None:
    both_bodies = [found["pair"] for found in ranks[:2]]
    for texts, _, _ in both_bodies:
        for kind, text in texts.items():
            assert str(text).startswith("RanksDifferError: ranks"), (kind, text)
    found = [rows for _, rows, _ in both_bodies]
    for kind in found[0]:
        both = [one[kind] for one in found]
        if kind == "differs later":
            assert all(str(one).startswith("RanksDifferError") for one in both), both
        elif kind == "replicate":
            assert [len(one) for one in both] == [15, 15]
        elif kind == "named":
            assert len(both[0] + both[1]) == 16
        else:
            assert sorted(both[0] + both[1]) == NAMES, (kind, both)

    accepted, refused = ([bad[most] for _, _, bad in both_bodies] for most in (4, 3))
    assert [sum(valid) for valid in accepted] == [6, 6], accepted
    assert any("max_bad=3" in str(one) and "4 samples" in str(one) for one in refused), refused


def test_a_rank_that_never_reads_is_an_error_after_the_timeout_of_the_group(ranks: list[dict[str, Any]]) -> None:
    text = ranks[0]["alone"]
    assert text.startswith("RanksDifferError") and "replicate=True" in text


def test_peers_are_compared_where_they_read(ranks: list[dict[str, Any]]) -> None:
    found = [one["peers"] for one in ranks]
    assert all(str(first).startswith("RanksDifferError") for first, _, _ in found), found
    assert [all_read for _, all_read, _ in found[:2]] == [found[0][1]] * 2
    assert sorted(found[0][1] + found[2][1]) == NAMES
    assert sorted(found[0][2] + found[2][2]) == sorted(NAMES * 2)
