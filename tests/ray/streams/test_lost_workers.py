"""Streams over Ray whose workers are killed: each row is consumed once, and a worker comes back with new weights."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STAGE = """
    import json, logging, os, signal, sys, time
    from pathlib import Path

    import numpy as np
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

    folder = Path(sys.argv[1])

    @remote_class()
    class Maker:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows: list[int]) -> np.ndarray:
            time.sleep(0.01)
            flag = folder / "killed"
            if 33 in rows and not flag.exists():
                while not (folder / "read").exists():
                    time.sleep(0.01)
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return np.repeat(np.array(rows), 4096).reshape(len(rows), 4096)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def first(self, values: np.ndarray) -> list[int]:
            return [int(value[0]) for value in values]

        @remote_function(dispatch="all")
        def dies(self):
            os.kill(os.getpid(), signal.SIGKILL)

    SOURCE = [list(range(at, at + 10)) for at in range(0, 100, 10)]
"""

A_WORKER_DIES = (
    STAGE
    + """
    logging.getLogger("twinkle").setLevel(logging.ERROR)  # that workers are lost is a warning
    groups = [DeviceGroup("makers", 4, "CPU"), DeviceGroup("users", 2, "CPU"), DeviceGroup("writer", 1, "CPU")]
    with twinkle.session("ray", groups=groups):
        makers = Maker(device_mesh=DeviceMesh.from_sizes(dp_size=4), remote_group="makers")
        users = Maker(device_mesh=DeviceMesh.from_sizes(dp_size=2), remote_group="users")
        seen = []
        with twinkle.stream(SOURCE, makers.make, rows=10, ahead=40, order="source") as batches:
            for number, batch in enumerate(batches):
                seen += twinkle.get(users.first(batch))
                if number == 2:  # a batch that the loop holds while its maker dies is an error of the loop
                    (folder / "read").touch()
                    while not batches.stats().redone:
                        time.sleep(0.01)
        (folder / "seen").write_text(json.dumps([seen, batches.stats().redone]))
        writer = Maker(remote_group="writer")
        try:
            twinkle.get(writer.dies())
        except twinkle.WorkerDiedError:
            print("died", flush=True)
        print("done", flush=True)
"""
)


@pytest.mark.ray
def test_a_dead_worker_costs_only_the_rows_that_it_held_and_the_program_ends_silently(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    out = joined_program(A_WORKER_DIES, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=200)
    seen, redone = json.loads((tmp_path / "seen").read_text())
    own = [line for line in out.splitlines() if not line.startswith("(raylet) ")]  # Ray tells of each worker that died
    assert own == ["died", "done"], out  # no failure that nobody has seen, no traceback
    assert seen == list(range(100))
    assert 1 <= redone <= 40


THE_ONLY_ONE = """
    import json, os, signal, sys
    from pathlib import Path

    import torch
    import twinkle
    from twinkle import DeviceGroup, WeightSync, get, remote_class, remote_function

    folder = Path(sys.argv[1])

    @remote_class()
    class Model:
        def __init__(self, dies: bool) -> None:
            self.weight = torch.zeros(8)
            (folder / f"{dies}-{os.getpid()}").touch()
            if dies and len(list(folder.glob("True-*"))) in (2, 3):  # twice on its way back
                os.kill(os.getpid(), signal.SIGKILL)

        def weights(self):
            return {"weight": self.weight}

        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> list[tuple[int, float]]:
            if rows == [9] and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [(row, float(self.weight[0])) for row in rows]

        @remote_function(dispatch="all", collect="first")
        def update(self, batch) -> None:
            self.weight += 1.0

    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with twinkle.session("ray", groups=groups, restart="group"):
        sampler, actor = Model(True, remote_group="sampler"), Model(False, remote_group="actor")
        sync, told, versions = WeightSync(actor, sampler), [], []
        with twinkle.stream([[row] for row in range(20)], sampler.sample, rows=1, ahead=2) as batches:
            for batch in batches:
                (made,), info = get(batch), batches.info
                told.append([*made, info.begun[0], info.ended[0]])
                get(actor.update(batch))
                versions.append(sync())
        (folder / "told").write_text(json.dumps([told, versions]))
    print("done")
"""


@pytest.mark.ray
def test_the_only_worker_of_a_stage_that_dies_twice_on_its_way_back_comes_with_the_weights_of_the_source(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    out = joined_program(THE_ONLY_ONE, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=200)
    told, versions = json.loads((tmp_path / "told").read_text())
    assert "done" in out and len(list(tmp_path.glob("True-*"))) == 4
    assert [row for row, *_ in told] == list(range(20))
    assert versions == sorted(set(versions)) and len(versions) == 20
    for _, weight, begun, _ in told:
        assert weight >= sum(version <= begun for version in versions), "never older weights than the row tells"
