"""Loaders on a Ray cluster: what holds in threads holds between processes."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.data.group_lives import check_group_life

from twinkle_data import BadSampleError, Batch, DataLoader
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import WorkerDiedError, current_worker, get, on, remote_class, remote_function, session, stats

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


class Rows:
    """Rows of 64 KB, built where they are read; one of them is torn, another kills its reader.

    Args:
        torn: Index of the torn one.
        deadly: Index of the deadly one.
    """

    def __init__(self, torn: int = -1, deadly: int = -1) -> None:
        self.torn = torn
        self.deadly = deadly

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        if index == self.torn:
            raise KeyError("torn")
        if index == self.deadly:
            os._exit(3)
        return np.full(8192, index, dtype=np.float64)


@pytest.fixture(scope="module", autouse=True)
def _session(ray_cluster: None) -> Iterator[None]:
    groups = [DeviceGroup("data", 4, "CPU"), DeviceGroup("actor", 3, "CPU"), DeviceGroup("doomed", 1, "CPU")]
    with session("ray", groups=groups):
        yield


@remote_class()
class Actor:
    """Says what it is given."""

    @remote_function(dispatch="slice_dp", collect="flatten", lazy_collect=False)
    def rows(self, batch: Batch[NDArray[np.float64]]) -> list[tuple[int | None, int, float, int]]:
        rank = current_worker().rank
        return [
            (rank, index, float(row.mean()), batch.position) for index, row in zip(batch.indices, batch, strict=True)
        ]


def loader(dataset: object, **options: Any) -> DataLoader[Batch[NDArray[np.float64]]]:
    usual: dict[str, Any] = {"batch_size": 8, "shuffle": True, "drop_last": False}
    return DataLoader(dataset, **(usual | {"device_mesh": MESH, "remote_group": "data"} | options))


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_go_from_worker_to_worker(workers: int) -> None:
    actor = on("actor", DeviceMesh.from_sizes(dp_size=3)).create(Actor)
    own = loader(Rows, num_workers=workers)
    expected: DataLoader[Batch[Any]] = DataLoader(Rows, batch_size=8, shuffle=True, drop_last=False, device_mesh=MESH)
    for batch, whole in zip(own, expected, strict=True):
        told = actor.rows(batch)
        assert [(index, mean, place) for _, index, mean, place in told] == [
            (index, index, whole.position) for index in whole.indices
        ]
        assert {rank for rank, *_ in told} == set(range(min(3, len(whole))))
        assert own.state_dict() == expected.state_dict()
    reads = [record for record in stats() if record.method == "RankLoader.read"][-4:]
    assert [record.driver_fetched for record in reads] == [0] * 4
    assert sum(sum(record.produced.values()) for record in reads) < 1.1 * 26 * 65536 + 100_000


def test_a_bad_sample_is_an_error_at_its_step() -> None:
    own = loader(lambda: Rows(torn=17), shuffle=False)
    loop = iter(own)
    next(loop)
    next(loop)
    with pytest.raises(BadSampleError, match="sample 17 "):
        next(loop)
    again = loader(lambda: Rows(torn=17), shuffle=False, on_error="skip")
    again.load_state_dict(own.state_dict())
    assert [batch.valid.count(False) for batch in again] == [1, 0]


def test_lives_on_a_group() -> None:
    for number in range(4):
        check_group_life(number, "data", 4)


@remote_class()
class Reader:
    """Loads its own rank's rows with processes of its own."""

    def __init__(self) -> None:
        self.loader: DataLoader[Batch[Any]] = DataLoader(Numbers(), batch_size=8, num_workers=2, device_mesh=MESH)

    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def read(self) -> tuple[list[int], bool]:
        rows = [(sample, pid) for batch in self.loader for sample, pid in batch]
        return [sample for sample, _ in rows], os.getpid() in {pid for _, pid in rows}


class Numbers:
    """Numbers and the process that read them."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


def test_loader_processes_under_workers() -> None:
    readers = on("data", MESH).create(Reader)
    for _ in range(2):
        told: Any = get(readers.read())
        rows = [told[rank][0] for rank in MESH.collect_ranks]
        assert sorted(rows[0] + rows[1]) == list(range(32))
        assert not any(itself for _, itself in told)


def test_a_reader_that_dies_is_an_error_and_not_a_batch() -> None:
    own = loader(lambda: Rows(deadly=9), shuffle=False, device_mesh=None, remote_group="doomed")
    delivered: list[int] = []
    with pytest.raises(WorkerDiedError, match="doomed"):  # noqa: PT012 - the first batch may be lost with its reader
        for batch in own:
            delivered += batch.indices
    assert delivered in ([], list(range(8)))
    assert own.position == len(delivered)


@remote_class()
class Helped:
    """Reads in a helper thread."""

    def __init__(self) -> None:
        self.loader = DataLoader(list(range(26)), batch_size=2)

    def _read(self, where: str) -> list[int]:
        mesh = MESH if where == "mesh" else None
        loader = self.loader if where == "before" else DataLoader(list(range(26)), batch_size=2, device_mesh=mesh)
        return [row for batch in loader for row in batch]

    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def read(self, where: str) -> Any:
        with ThreadPoolExecutor(1) as pool:
            worker = pool.submit(current_worker).result()
            return worker.rank, worker.mesh == MESH, pool.submit(self._read, where).result()


def test_a_helper_thread_of_a_worker_is_that_workers() -> None:
    helped = on("data", MESH).create(Helped)
    for where in ("before", "mesh", "the component's mesh"):
        found: Any = helped.read(where)
        assert [(rank, own) for rank, own, _ in found] == [(rank, True) for rank in range(4)]
        assert found[0][2] == found[1][2]
        assert sorted(found[0][2] + found[2][2]) == list(range(26))
