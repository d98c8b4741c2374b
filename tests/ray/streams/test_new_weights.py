"""New weights during a stream over Ray: past a long chunk, and for one of several workers that was killed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.long

WORKERS = ("sampler0", "sampler1", "sampler2")

PROGRAM = """
    import json, os, signal, sys, time
    from pathlib import Path

    import torch
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh, WeightSync, current_worker, get, remote_class, remote_function

    folder = Path(sys.argv[1])
    LIMIT = 90.0

    @remote_class()
    class Model:
        def __init__(self) -> None:
            self.weight = torch.zeros(1024)

        def weights(self):
            return {"weight": self.weight}

        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> list[tuple[int, float, str, int]]:
            before, until = float(self.weight[0]), time.monotonic() + LIMIT
            while 0 in rows and not (folder / "leave").exists() and time.monotonic() < until:
                time.sleep(0.005)
            if rows[0] >= 20 and current_worker().group == "sampler" and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.01)
            assert float(self.weight[0]) == before
            return [(row, before, f"{current_worker().group}{current_worker().rank}", os.getpid()) for row in rows]

        @remote_function(dispatch="all", collect="first")
        def update(self, batch) -> None:
            self.weight += 1.0

    def rows():
        row, until = 0, time.monotonic() + LIMIT
        while not (folder / "enough").exists() and time.monotonic() < until:
            yield [row]
            row += 1

    groups = [DeviceGroup("sampler", 3, "CPU"), DeviceGroup("actor", 1, "CPU")]
    with twinkle.session("ray", groups=groups, restart="group"):
        sampler = Model(device_mesh=DeviceMesh.from_sizes(dp_size=3), remote_group="sampler")
        actor = Model(remote_group="actor")
        sync, told, pids = WeightSync(actor, sampler), [], {}
        with twinkle.stream(rows(), sampler.sample, rows=1, ahead=4, order="arrival") as batches:
            for number, batch in enumerate(batches, 1):
                (made,), info = get(batch), batches.info
                told.append([*made, info.begun[0], info.ended[0]])
                pids.setdefault(made[2], set()).add(made[3])
                if number <= 2 or (number > 12 and number % 3 == 0):
                    get(actor.update(batch))
                    version = sync()
                    assert version == batches.version
                    get(actor.update(batch))  # the source steps on: no version has an even weight but the first
                if number == 12:
                    (folder / "leave").touch()
                if any(len(seen) > 1 for seen in pids.values()) and number > 30:
                    (folder / "enough").touch()
        (folder / "told").write_text(json.dumps([told, version]))
    print("done")
"""


@pytest.mark.ray
def test_long_chunks_and_killed_workers_hold_up_no_sync_and_no_row_is_made_with_older_weights(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    out = joined_program(PROGRAM, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=200)
    told, version = json.loads((tmp_path / "told").read_text())
    assert "done" in out
    assert sorted(row for row, *_ in told) == list(range(len(told))), "each row once"
    assert all(weight in (0.0, *range(1, 2 * version, 2)) for _, weight, *_ in told), "a version is what was stored"
    assert all(begun <= (weight + 1) // 2 <= ended for _, weight, _, _, begun, ended in told)
    (long_one,) = [entry for entry in told if entry[0] == 0]
    assert long_one[1] == 0.0 and long_one[5] - long_one[4] == 2, "two syncs did not wait for it"
    assert version >= 5
    again = {rank: {pid for _, _, of_rank, pid, _, _ in told if of_rank == rank} for rank in WORKERS}
    assert sorted(map(len, again.values())) == [1, 1, 2], "the killed worker came back"
    killed = next(rank for rank, pids in again.items() if len(pids) == 2)
    first_pid = next(pid for _, _, rank, pid, _, _ in told if rank == killed)
    after = [weight for _, weight, rank, pid, _, _ in told if rank == killed and pid != first_pid]
    assert min(after) >= 3.0, "with current weights, not those of its constructor"
