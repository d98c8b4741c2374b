"""Workers of a Ray cluster that die at a step of a sync: old weights or new ones, and never parts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import json, os, signal, time
    import torch, twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray.weights import WeightSync, WeightSyncError
    from twinkle_ray.weights import worker
    from twinkle_remote import current_worker, remote_class, remote_function

    ROWS = 4

    @remote_class()
    class Part:
        def __init__(self, value, device_mesh=None):
            self.tensor = torch.full((ROWS, 300_000), float(value))
            self.versions = []
            self.dies = False

        def weights(self):
            return {"w": self.tensor}

        def on_weights(self, version):
            self.versions.append(version)
            if self.dies and current_worker().rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)

        @remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

        @remote_function(dispatch="all")
        def state(self):
            return float(self.tensor.min()), float(self.tensor.max()), self.versions

        @remote_function(dispatch="all")
        def fill(self, value):
            self.tensor.fill_(value)

        @remote_function(dispatch="all")
        def busy(self, seconds):
            before = float(self.tensor[0, 0])
            time.sleep(seconds)
            return before == float(self.tensor[-1, -1])

        @remote_function(dispatch="all")
        def arm(self, step, victim, rank):
            if step == "on_weights":
                self.dies = True
            elif rank == current_worker().rank:
                plain = getattr(worker, step)

                def strike(*arguments):
                    os.kill(victim or os.getpid(), signal.SIGKILL)
                    time.sleep(0.5)
                    return plain(*arguments)

                strike.__name__, strike.__qualname__, strike.__module__ = step, step, worker.__name__
                setattr(worker, step, strike)

    CASES = {  # the armed side and rank, the step; whether rank 0 of the source dies there; source and target
        "source": ("source", 1, "stage_out", False, "ab"),
        "between": ("target", 0, "stage_in", True, "cb"),
        "target": ("target", 1, "stage_in", False, "de"),
        "on_weights": ("target", 1, "on_weights", False, "df"),
    }

    SIZES = {"a": 2, "b": 2, "c": 1, "d": 1, "e": 2, "f": 2}

    def outcome(name):
        side, rank, step, source_dies, (source, target) = CASES[name]
        mesh = {name: DeviceMesh.from_sizes(dp_size=size) for name, size in SIZES.items()}
        parts = {"source": Part(1.0, remote_group=source, device_mesh=mesh[source])}
        parts["target"] = Part(0.0, remote_group=target, device_mesh=mesh[target])
        sync = WeightSync(parts["source"], parts["target"], timeout=60.0)
        sync()
        parts["source"].fill(2.0)
        victim = parts["source"].pid() if source_dies else 0
        parts[side].arm(step, victim, rank)
        parts[side].pid()
        began = time.monotonic()
        try:
            told = sync()
        except WeightSyncError as error:
            told = str(error)
        seconds = time.monotonic() - began
        try:
            states = parts["target"].state()
        except twinkle.WorkerDiedError as error:
            states = str(error)
        return {"told": told, "seconds": seconds, "states": states, "version": sync.version}

    if __name__ == "__main__":
        groups = [DeviceGroup(name, size, "CPU") for name, size in SIZES.items()]
        with twinkle.session("ray", groups=groups, lazy_collect=False):
            for name in CASES:
                print("TOLD", name, json.dumps(outcome(name)), flush=True)
        print("ENDED", flush=True)
"""


@pytest.fixture(scope="module")
def told(joined_programs: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """What each case told."""
    running = joined_programs(PROGRAM)
    found = {}
    for _ in range(4):
        name, _, rest = running.line("TOLD", 120).partition(" ")
        found[name] = json.loads(rest)
    running.finish(60)
    return found


@pytest.mark.parametrize("case", ["source", "between"])
def test_a_death_of_the_source_leaves_the_old_weights(told: dict[str, dict[str, Any]], case: str) -> None:
    found = told[case]
    assert str(found["told"]).startswith("the weight sync failed at its step")
    assert "and the target keeps the weights that it had" in found["told"]
    assert found["states"] == [[1.0, 1.0, [1]]] * 2 and found["version"] == 1
    assert found["seconds"] < 45


def test_a_death_of_the_target_before_it_has_the_version_leaves_the_old_weights(
    told: dict[str, dict[str, Any]],
) -> None:
    found = told["target"]
    assert "e[1/2 dp=1] died" in found["told"] and found["version"] == 1
    assert "e[1/2" in found["states"]


def test_a_death_once_all_have_the_version_is_no_failure_of_the_sync(told: dict[str, dict[str, Any]]) -> None:
    found = told["on_weights"]
    assert (found["told"], found["version"]) == (2, 2)
    assert "[1/2 dp=1] died" in found["states"]
