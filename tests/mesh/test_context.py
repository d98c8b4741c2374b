from __future__ import annotations

import asyncio
import threading

import pytest

from twinkle_mesh import DeviceMesh, current_rank, use_rank


def test_threads_do_not_see_one_another() -> None:
    seen: list[int | None] = []
    with use_rank(1):
        thread = threading.Thread(target=lambda: seen.append(current_rank()))
        thread.start()
        thread.join(10)
        assert current_rank() == 1
    assert seen == [None]


def test_tasks_do_not_see_one_another() -> None:
    async def hold(rank: int, both: asyncio.Barrier) -> int | None:
        with use_rank(rank):
            await both.wait()
            return current_rank()

    async def main() -> tuple[int | None, int | None]:
        both = asyncio.Barrier(2)
        async with asyncio.timeout(10):
            return await asyncio.gather(hold(0, both), hold(1, both))

    assert list(asyncio.run(main())) == [0, 1]


def test_a_mesh_with_ranks_that_the_launcher_did_not_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    mesh = DeviceMesh.from_sizes(dp_size=4)
    for ask in (lambda: mesh.get_slice(8), mesh.data_rank, mesh.coordinate):
        with pytest.raises(ValueError, match="WORLD_SIZE=2"):
            ask()
    assert mesh.get_slice(8, rank=1) == slice(2, 4)
    with use_rank(3):
        assert mesh.get_slice(8) == slice(6, 8)
    assert DeviceMesh.from_sizes(dp_size=2).get_slice(8) == slice(4, 8)


def test_a_mesh_of_some_of_the_processes_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert DeviceMesh.from_sizes(dp_size=4, pp_size=2).submesh("dp", 5).world_size == 4
    assert DeviceMesh.from_ranks([4, 5, 6, 7], ("dp",)).get_slice(8) == slice(2, 4)
    with pytest.raises(ValueError, match="rank=5"):
        DeviceMesh.from_sizes(dp_size=4).get_slice(8)
    with pytest.raises(ValueError, match="up to 8"):
        DeviceMesh.from_ranks([5, 8], ("dp",)).get_slice(8)
    monkeypatch.delenv("WORLD_SIZE")
    assert DeviceMesh.from_ranks([5, 8], ("dp",)).get_slice(8) == slice(0, 4)
