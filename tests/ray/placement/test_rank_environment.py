from __future__ import annotations

import pytest

from twinkle_ray.collective.launcher import device_index, launched
from twinkle_ray.placement.actor_set import rank_order
from twinkle_ray.placement.rank_environment import local_ranks, threads
from twinkle_ray.placement.reservation import Reserved
from twinkle_ray.workers import rank_actor
from twinkle_ray.workers.rank_actor import WorkerLocation


def _at(node: str, cores: int = 1, given: str | None = None) -> WorkerLocation:
    return WorkerLocation(node, node, "127.0.0.1", 1, cores=cores, threads=given)


@pytest.mark.parametrize("kind", ["GPU", "NPU", "CPU", "ACCEL"])
def test_the_local_rank_is_the_index_of_a_device_that_the_worker_sees(kind: str) -> None:
    found = local_ranks([_at("a"), _at("a"), _at("a"), _at("b")], kind)
    assert [row["TWINKLE_LOCAL_RANK"] for row in found] == ["0", "1", "2", "0"]
    assert [row["LOCAL_WORLD_SIZE"] for row in found] == ["3", "3", "3", "1"]
    own = kind in ("GPU", "NPU")
    assert [row["LOCAL_RANK"] for row in found] == (["0"] * 4 if own else ["0", "1", "2", "0"])


@pytest.mark.parametrize("visible", [1, 2, 8])
def test_a_worker_takes_its_first_device_and_keeps_its_number_on_the_node(
    visible: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"RANK": "11", "WORLD_SIZE": "16", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**told, **local_ranks([_at("a")] * 8, "GPU")[3]}.items():
        monkeypatch.setenv(name, value)
    place = launched()
    assert (place.local_rank, place.local_world_size) == (3, 8)
    assert device_index(place.local_rank, visible) == 0


def test_a_launched_process_takes_the_device_of_its_local_rank_or_its_only_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWINKLE_LOCAL_RANK", raising=False)
    assert [device_index(3, visible) for visible in (1, 4, 8)] == [0, 3, 3]
    with pytest.raises(ValueError, match="this process sees 2"):
        device_index(3, 2)


@pytest.mark.parametrize(
    ("cores", "devices", "of_node", "wanted"), [(64, 1, 8, "8"), (64, 4, 8, "32"), (2, 1, 8, "1"), (16, 1, 1, "16")]
)
def test_a_worker_with_devices_has_its_share_of_the_cores(cores: int, devices: int, of_node: int, wanted: str) -> None:
    assert threads(_at("a", cores), "GPU", devices, of_node) == {"OMP_NUM_THREADS": wanted}
    assert threads(_at("a", cores, "5"), "GPU", devices, of_node) == {}
    assert threads(_at("a", cores), "CPU", devices, of_node) == {}


NAMES = ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-0a", "MIG-7d5e", "MIG-GPU-1b/3/0"]


@pytest.mark.parametrize(
    ("visible", "names", "numbers"),
    [
        (None, ["3"], (3,)),
        ("", ["3", "1"], (3, 1)),
        ("4,5", ["5"], (1,)),
        ("7, 2", ["7", "2"], (0, 1)),
        (",".join(NAMES), NAMES[::-1], (3, 2, 1, 0)),
        (",".join(NAMES), ["MIG-7d5e"], (2,)),
        (None, ["GPU-0a"], None),
        ("4,5", ["6"], (6,)),
    ],
)
def test_devices_are_numbered_as_their_node_counts_them(
    visible: str | None, names: list[str], numbers: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    monkeypatch.setattr(rank_actor, "first_environment", lambda: first)
    assert rank_actor.device_numbers("GPU", names) == numbers
    assert rank_actor.device_numbers("accel", names) is None


def test_ranks_go_by_the_numbers_of_devices_whatever_their_names() -> None:
    at = [
        WorkerLocation("a", "a", "", 1, ("GPU-a",), numbers=(1,)),
        WorkerLocation("a", "a", "", 1, ("GPU-b",), numbers=(0,)),
        WorkerLocation("b", "b", "", 1, ("10",), numbers=(10,)),
        WorkerLocation("b", "b", "", 1, ("9",), numbers=(9,)),
        WorkerLocation("c", "c", "", 1, ("GPU-d",)),  # where a node does not tell its numbers, by name
        WorkerLocation("c", "c", "", 1, ("GPU-c",)),
    ]
    reserved = [Reserved(None, 0, node, "", {}) for node in (0, 0, 1, 1, 2, 2)]
    assert rank_order(at, reserved) == [1, 0, 3, 2, 5, 4]
