"""Streams over Ray whose workers are killed: each row is consumed once."""

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


IT_DIES_ON_ITS_WAY_BACK = """
    import os, signal, sys, time
    from pathlib import Path

    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

    folder = Path(sys.argv[1])

    @remote_class()
    class Maker:
        def __init__(self):
            (folder / f"made-{os.getpid()}").touch()
            made = len(list(folder.glob("made-*")))
            if made in (3, 4):  # the first two are those of the beginning
                os.kill(os.getpid(), signal.SIGKILL)
            if made == 5:
                (folder / "back").write_text(str(os.getpid()))

        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows: list[int]) -> list[tuple[int, int]]:
            time.sleep(0.02)
            if 33 in rows and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return [(row, os.getpid()) for row in rows]

    groups = [DeviceGroup("makers", 2, "CPU")]
    with twinkle.session("ray", groups=groups, restart="group"):
        makers = Maker(device_mesh=DeviceMesh.from_sizes(dp_size=2), remote_group="makers")
        seen, until = [], time.monotonic() + 120
        with twinkle.stream([[row] for row in range(20_000)], makers.make, rows=10, ahead=20) as batches:
            for batch in batches:
                seen += twinkle.get(batch)
                pids, back = {pid for _, pid in seen}, folder / "back"
                if (back.exists() and int(back.read_text() or 0) in pids) or time.monotonic() > until:
                    break
        assert [row for row, _ in seen] == list(range(len(seen)))
        assert int((folder / "back").read_text()) in {pid for _, pid in seen}, "it did not come back"
        print("done")
"""


@pytest.mark.ray
def test_a_worker_that_dies_twice_on_its_way_back_comes_back(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    assert "done" in joined_program(IT_DIES_ON_ITS_WAY_BACK, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=200)
