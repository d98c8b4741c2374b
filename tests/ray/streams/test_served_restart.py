"""A stream of a client whose served workers die on Ray: they come back with current weights; each row comes once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROGRAM = """
    import json, os, signal, subprocess, sys, time
    from pathlib import Path

    import torch
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, WeightSync, current_worker, get, remote_class, remote_function

    folder, TOKEN = Path(sys.argv[1]), "a token for tests"

    @remote_class()
    class Model:
        def __init__(self) -> None:
            self.weight = torch.zeros(64)

        def weights(self):
            return {"weight": self.weight}

        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> list[tuple[int, float, int, int]]:
            if rows[0] >= 10 and current_worker().rank == 1 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
            return [(row, float(self.weight[0]), current_worker().rank, os.getpid()) for row in rows]

        @remote_function(dispatch="all", collect="first")
        def update(self) -> None:
            self.weight += 1.0

    def rows():
        row, until = 0, time.monotonic() + 100.0
        while not (folder / "enough").exists() and time.monotonic() < until:
            yield [row]
            row += 1

    def consume(address):
        with twinkle.session("http", address=address, token=TOKEN):
            sampler = Model(device_mesh=DeviceMesh.from_sizes(dp_size=2), remote_group="sampler")
            actor, told, pids = Model(remote_group="actor"), [], {}
            sync = WeightSync(actor, sampler)
            with twinkle.stream(rows(), sampler.sample, rows=1, ahead=4, order="arrival") as batches:
                for number, batch in enumerate(batches, 1):
                    ((row, weight, rank, pid),), info = get(batch), batches.info
                    told.append([row, weight, rank, pid, info.begun[0], info.ended[0]])
                    pids.setdefault(rank, set()).add(pid)
                    if number <= 12 or number % 5 == 0:
                        get(actor.update())
                        assert sync() == batches.version
                    if len(pids.get(1, ())) == 2 and number > 30:
                        (folder / "enough").touch()
            (folder / "told").write_text(json.dumps(told))
        assert "ray" not in sys.modules

    if len(sys.argv) > 2:
        consume(sys.argv[2])
    else:
        groups = [DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU")]
        with twinkle.session("ray", groups=groups, restart="group"):
            with twinkle.serve([Model], port=0, token=TOKEN) as server:
                command = [sys.executable, sys.argv[0], sys.argv[1], server.address]
                subprocess.run(command, check=True, timeout=150)
        print("done")
"""


@pytest.mark.ray
def test_served_workers_that_die_come_back_with_current_weights(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    out = joined_program(PROGRAM, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=200)
    assert "done" in out
    told = json.loads((tmp_path / "told").read_text())
    assert sorted(row for row, *_ in told) == list(range(len(told))), "each row once"
    assert all(begun <= weight <= ended for _, weight, _, _, begun, ended in told)
    _, *others = dict.fromkeys(pid for _, _, rank, pid, _, _ in told if rank == 1)
    assert len(others) == 1, "the killed worker came back"
    assert min(weight for _, weight, _, pid, _, _ in told if pid == others[0]) >= 1.0, "with current weights"
