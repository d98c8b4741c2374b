"""Weight sync over the call protocol: one process, threads, launched processes, a Ray cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest
import torch

import twinkle_remote
from twinkle_mesh import DeviceGroup
from twinkle_ray.weights import Shard, WeightSync, WeightSyncError
from twinkle_remote import current_worker, remote_class, remote_function
from twinkle_remote.errors import WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.long

ROWS = 12


@remote_class()
class Actor:
    def __init__(self, ranks: int) -> None:
        self.rank, self.ranks = current_worker().rank or 0, ranks
        rows = ROWS // ranks
        self.shard = Shard(torch.zeros(rows, 3), (ROWS, 3), (self.rank * rows, 0))

    def weights(self) -> dict[str, Shard]:
        return {"w": self.shard}

    @remote_function(dispatch="all")
    def fill(self, value: float) -> None:
        self.shard.tensor.copy_(
            value + torch.arange(ROWS * 3.0).view(ROWS, 3)[self.shard.offset[0] :][: ROWS // self.ranks]
        )


@remote_class()
class Sampler:
    def __init__(self) -> None:
        self.tensor, self.versions = torch.zeros(ROWS, 3), list[int]()

    def weights(self) -> dict[str, torch.Tensor]:
        return {"w": self.tensor}

    def on_weights(self, version: int) -> None:
        if version == 5:
            raise KeyError("five")
        self.versions.append(version)

    @remote_function(dispatch="all")
    def state(self) -> tuple[float, list[int]]:
        good = torch.arange(ROWS * 3.0).view(ROWS, 3)
        return float((self.tensor - good).mean()), list(self.versions)


def exercise(actors: int, samplers: int, transport: Any = None) -> None:
    """All syncs of one pair: those that wait, those that do not, and one that no rank of the target can apply."""
    actor, sampler = Actor(actors, remote_group="actor"), Sampler(remote_group="sampler")  # type: ignore[call-arg]  # remote_group is the decorator's

    def state() -> list[tuple[float, list[int]]]:
        found = sampler.state()
        return found if isinstance(found, list) else [found]

    sync = WeightSync(actor, sampler, transport=transport, timeout=60.0)
    for version in (1, 2):
        actor.fill(float(version))
        assert sync() == version
        assert state() == [(float(version), list(range(1, version + 1)))] * samplers
    actor.fill(3.0)
    under_way = sync.start()
    actor.fill(9.0)
    with pytest.raises(WeightSyncError, match="result"):
        sync()
    assert state() == [(2.0, [1, 2])] * samplers
    assert under_way.result() == under_way.result() == 3
    assert state() == [(3.0, [1, 2, 3])] * samplers
    assert sync() == 4
    sync.close()
    assert state() == [(9.0, [1, 2, 3, 4])] * samplers
    if samplers > 1:
        assert sync() == 5
        with pytest.raises(WorkerDiedError, match=r"could not apply version 5 .*KeyError: 'five'"):
            sampler.state()
    with pytest.raises(WeightSyncError, match=r"version 5 of the weights was published.*KeyError: 'five'"):
        sync()
    assert sync.version == 5


def groups(actors: int, samplers: int) -> list[DeviceGroup]:
    return [DeviceGroup("actor", actors, "CPU"), DeviceGroup("sampler", samplers, "CPU")]


def test_threads() -> None:
    with twinkle_remote.session("threads", groups=groups(3, 2), lazy_collect=False):
        exercise(3, 2)


@remote_class()
class Broken:
    def weights(self) -> dict[str, torch.Tensor]:
        raise KeyError("no weights yet")


def test_a_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with twinkle_remote.session("threads", groups=groups(3, 2), lazy_collect=False):
        broken, sampler = Broken(remote_group="actor"), Sampler(remote_group="sampler")  # type: ignore[call-arg]  # remote_group is the decorator's
        with pytest.raises(WeightSyncError, match="no weights yet"):
            WeightSync(broken, sampler)()
        assert sampler.state() == [(-17.5, [])] * 2
    assert caplog.text == ""


def test_one_process() -> None:
    with twinkle_remote.session("local", lazy_collect=False):
        exercise(1, 1)


@pytest.fixture(scope="module")
def ray_groups(ray_cluster: None) -> Iterator[None]:
    with twinkle_remote.session("ray", groups=groups(2, 3), lazy_collect=False):
        yield


@pytest.mark.ray
@pytest.mark.usefixtures("ray_groups")
def test_a_ray_cluster() -> None:
    exercise(2, 3, "store")


LAUNCHED = """
    import os, sys, torch, twinkle_remote
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import remote_class
    from twinkle_ray.weights import Shard, WeightSync

    RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    @remote_class()
    class Actor:
        def __init__(self):
            self.shard = Shard(torch.full((400_000,), 1.0 + RANK), (400_000 * SIZE,), (400_000 * RANK,))
        def weights(self):
            return {"w": self.shard}

    @remote_class()
    class Sampler:
        def __init__(self):
            self.tensor, self.versions = torch.zeros(400_000 * SIZE), []
        def weights(self):
            return {"w": self.tensor}
        def on_weights(self, version):
            self.versions.append(version)

    twinkle_remote.initialize("local")
    mesh = DeviceMesh.from_sizes(dp_size=SIZE, device_type="cpu")
    actor, sampler = Actor(device_mesh=mesh, remote_group="a"), Sampler(device_mesh=mesh, remote_group="b")
    for own_group in (True, False):
        if not own_group:
            torch.distributed.init_process_group("gloo")
        sampler.tensor.zero_()
        sync = WeightSync(actor, sampler, timeout=60.0, check="always")
        assert (sync(), sync(), sync.start().result()) == (1, 2, 3)
        assert sampler.tensor.view(SIZE, -1).mean(1).tolist() == [1.0 + rank for rank in range(SIZE)]
        sync.close()
    assert sampler.versions == [1, 2, 3] * 2
    torch.distributed.destroy_process_group()
    twinkle_remote.shutdown()
    os.write(1, f"well {RANK}\\n".encode())  # at once: the processes share the pipe
"""


@pytest.mark.processes
def test_launched_processes(tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LAUNCHED))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(program)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert sorted(line for line in done.stdout.splitlines() if "well" in line) == ["well 0", "well 1"]
