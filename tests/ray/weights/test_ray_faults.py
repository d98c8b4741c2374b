"""Workers of a Ray cluster that die at a step of a sync: old weights or new ones on all, and nothing said twice."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import json, os, signal, sys, time
    from pathlib import Path
    import torch, twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray.weights import Shard, WeightSync, WeightSyncError
    from twinkle_ray.weights.worker import endpoint
    from twinkle_remote import current_worker, remote_class, remote_function

    ROWS, FOLDER = 4, Path.cwd()

    @remote_class()
    class Part:
        def __init__(self, value, case, device_mesh=None):
            self.case = case
            self.tensor = torch.full((ROWS, 300_000), float(value))
            self.versions = []

        def weights(self):
            return {"w": self.tensor}

        def on_weights(self, version):
            if self.dies and current_worker().rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.5)
            self.versions.append(version)

        dies = False

        @remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

        @remote_function(dispatch="all")
        def state(self):
            worker = current_worker()
            with open(FOLDER / f"{self.case}.{worker.rank}.new", "w") as file:
                json.dump([float(self.tensor.min()), float(self.tensor.max()), self.versions], file)
            os.rename(file.name, file.name.removesuffix(".new"))

        @remote_function(dispatch="all")
        def fill(self, value):
            self.tensor.fill_(value)

        @remote_function(dispatch="all")
        def arm(self, step, victim, rank, number):
            if step == "on_weights":
                self.dies = True
                return
            if rank not in (None, current_worker().rank):
                return
            plain = getattr(endpoint, step)

            def strike(*arguments):
                setattr(endpoint, step, plain)
                os.kill(victim or os.getpid(), number)
                until = time.monotonic() + 30
                while open_files(victim) and time.monotonic() < until:
                    time.sleep(0.01)
                return plain(*arguments)

            strike.__name__, strike.__qualname__, strike.__module__ = step, step, endpoint.__name__
            setattr(endpoint, step, strike)

    def open_files(pid):
        try:
            return os.listdir(f"/proc/{pid}/fd")
        except OSError:
            return []

    CASES = {  # the armed side, its rank (None: all), the step; whether the first rank of the source dies; syncs before
        "first": ("target", 0, "fetch", True, 0),
        "stopped": ("target", None, "transfer", False, 0),
        "commit": ("target", 1, "commit", False, 1),
        "kept": ("target", 1, "commit", False, 1),
        "on_weights": ("target", 1, "on_weights", False, 1),
        "settle": ("source", 1, "finalize", False, 1),
    }
    # Source and target of each: groups that lose no rank serve again, with new components.
    GROUPS = {"first": "ab", "stopped": "cb", "commit": "cd", "kept": "cf", "on_weights": "ce", "settle": "cb"}

    def outcome(name):
        side, rank, step, source_dies, before = CASES[name]
        mesh = DeviceMesh.from_sizes(dp_size=2)
        source, target = GROUPS[name]
        parts = {"source": Part(1.0, f"{name}.a", remote_group=source, device_mesh=mesh)}
        parts["target"] = Part(0.0, f"{name}.b", remote_group=target, device_mesh=mesh)
        stops = name == "stopped"
        given = {"silence": 2.0, "transport": "gloo"} if stops else {}
        given |= {"keep_old": True} if name == "kept" else {}
        sync = WeightSync(parts["source"], parts["target"], timeout=60.0, **given)
        for _ in range(before):
            sync()
        parts["source"].fill(2.0)
        victim = parts["source"].pid()[0] if source_dies else 0
        parts[side].arm(step, victim, rank, signal.SIGSTOP if stops else signal.SIGKILL)
        armed = parts[side].pid()
        began = time.monotonic()
        try:
            told = sync()
        except WeightSyncError as error:
            told = str(error)
        seconds = time.monotonic() - began
        for pid in armed if stops else ():
            os.kill(pid, signal.SIGCONT)  # what it was asked for ends only now, and in vain
        try:
            parts["target"].state()
        except twinkle.WorkerDiedError:
            pass
        survivor = FOLDER / f"{name}.b.0"
        until = time.monotonic() + 30
        while not survivor.exists() and time.monotonic() < until:
            time.sleep(0.01)
        return {"told": told, "seconds": seconds, "state": json.loads(survivor.read_text()), "version": sync.version}

    if __name__ == "__main__":
        groups = [DeviceGroup(name, 2, "CPU") for name in "abcdef"]
        with twinkle.session("ray", groups=groups, lazy_collect=False):
            for name in CASES:
                print("TOLD", name, json.dumps(outcome(name)), flush=True)
        print("ENDED", flush=True)
"""


@pytest.fixture(scope="module")
def told(joined_programs: Callable[..., Any]) -> tuple[dict[str, dict[str, Any]], str]:
    """What each case told, and everything that the program printed beside it."""
    running = joined_programs(PROGRAM)
    found = {}
    for _ in range(6):
        name, _, rest = running.line("TOLD", 120).partition(" ")
        found[name] = json.loads(rest)
    return found, running.finish(60)


@pytest.mark.parametrize(
    ("case", "old", "died"), [("first", 0.0, "a[0/2 dp=0] died"), ("kept", 1.0, "f[1/2 dp=1] died")]
)
def test_a_death_before_all_have_written_leaves_the_old_weights(
    told: tuple[dict[str, dict[str, Any]], str], case: str, old: float, died: str
) -> None:
    found = told[0][case]
    assert found["told"].startswith("the weight sync failed at its step")
    assert f"and the target keeps the weights that it had: {died}" in found["told"]
    assert found["state"] == [old, old, [1] if old else []] and found["version"] == old
    assert found["seconds"] < 10


def test_ranks_that_were_stopped_and_go_on_fail_nothing_more(told: tuple[dict[str, dict[str, Any]], str]) -> None:
    found = told[0]["stopped"]
    assert all(f"target rank {rank}" in found["told"] for rank in (0, 1)), found
    assert "showed no sign of life for 2 s" in found["told"]
    assert found["state"] == [0.0, 0.0, []] and found["seconds"] < 10


ARRIVED = "has arrived on all ranks, so that the others hold it; at the step 'commit'"
IN_PLACE = "is in place; at the step 'finalize'"


@pytest.mark.parametrize(
    ("case", "died", "placed"),
    [
        ("commit", "d[1/2 dp=1]", ARRIVED),
        ("settle", "c[1/2 dp=1]", IN_PLACE),
        ("on_weights", "e[1/2 dp=1]", f"({IN_PLACE}|{ARRIVED})"),  # a killed worker's last answer may be lost
    ],
)
def test_a_death_once_all_has_arrived_is_no_failure(
    told: tuple[dict[str, dict[str, Any]], str], case: str, died: str, placed: str
) -> None:
    found, printed = told[0][case], told[1]
    assert (found["told"], found["version"], found["state"]) == (2, 2, [2.0, 2.0, [1, 2]])
    (line,) = [line for line in printed.splitlines() if f"after it {died}" in line]
    assert re.match(f"version 2 of the weights {placed} after it", line) and "died" in line


def test_a_failure_is_told_once(told: tuple[dict[str, dict[str, Any]], str]) -> None:
    others = ("TOLD", "ENDED", "  called from", "twinkle: workers ready: ")  # the last one of a slow start
    printed = [line for line in told[1].splitlines() if not line.startswith(others)]
    assert [line for line in printed if "after it" not in line] == []
