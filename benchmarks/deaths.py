"""A stream whose samplers die all the time: what is lost, doubled, torn or left over, and how the driver grows.

    python benchmarks/deaths.py [--deaths 1200] [--every 1.0] [--samplers 4] [--seed 0] [--json FILE]
    python benchmarks/deaths.py --plain [--deaths 300]

Each `--every` seconds one to three samplers die at once: by SIGKILL, by SIGSTOP (a deadline tells, and the stopped
process is killed after some seconds), or with the fork server that they come from. The loop trains on what is delivered
and syncs new weights into the samplers after every eighth batch. Each row carries the least and the largest of the
sampler's weights before and after its work, so that torn weights show. At the end each row has come once, no process
is left. Memory (anonymous, after a collection), descriptors and threads of the driver are those after a tenth of the
deaths against those at the end. `--plain` has plain Ray lose and make as many actors, as a user would write it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch

import twinkle
from twinkle import DeviceGroup, DeviceMesh, WeightSync, remote_class, remote_function
from twinkle_remote.backends.support import running

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 4096
STOPPED_SECONDS = 8.0
ROW_TIMEOUT = 5.0


@remote_class()
class Sampler:
    """Makes rows out of its weights."""

    def __init__(self) -> None:
        self.weight = torch.zeros(SIZE)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights, all of one value."""
        return {"weight": self.weight}

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=ROW_TIMEOUT)
    def make(self, rows: list[int]) -> np.ndarray:
        """For each row its number, and the least and the largest weight before and after its work."""
        before = [float(self.weight.min()), float(self.weight.max())]
        time.sleep(0.02)
        after = [float(self.weight.min()), float(self.weight.max())]
        return np.array([[row, *before, *after] for row in rows])


@remote_class()
class Trainer:
    """Has the weights that are synced."""

    def __init__(self) -> None:
        self.weight = torch.zeros(SIZE)

    def weights(self) -> dict[str, torch.Tensor]:
        """The weights."""
        return {"weight": self.weight}

    @remote_function(dispatch="all", collect="first")
    def step(self) -> None:
        """Other weights, all of one value."""
        self.weight += 1.0


class Driver:
    """What a process holds: memory, descriptors, threads."""

    def __init__(self) -> None:
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="ascii")
        resident = next(line for line in status.splitlines() if line.startswith("RssAnon"))
        self.megabytes = int(resident.split()[1]) / 1024
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = len(os.listdir("/proc/self/task"))

    def since(self, before: Driver) -> dict[str, float]:
        """What has grown since an earlier look."""
        return {
            "megabytes": round(self.megabytes - before.megabytes, 1),
            "descriptors": self.descriptors - before.descriptors,
            "threads": self.threads - before.threads,
        }


def children() -> list[int]:
    """All processes below this one."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents.setdefault(int(parent), []).append(int(name))
    found, left = [], [os.getpid()]
    while left:
        below = parents.get(left.pop(), [])
        found += below
        left += below
    return found


def fork_servers() -> list[int]:
    """The processes that workers are forks of."""
    found = []
    for pid in children():
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"twinkle_ray/forkserver" in line or b"twinkle_ray.forkserver" in line:
                found.append(pid)
    return found


class Killer:
    """Ends samplers until a number of deaths is reached."""

    def __init__(self, samplers: int, deaths: int, every: float, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self.first = 0.0
        self._deaths, self._every, self._samplers = deaths, every, samplers
        self._random = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def deaths(self) -> int:
        """Deaths so far."""
        return sum(self.counts.values())

    @property
    def over(self) -> bool:
        """Whether all have died."""
        return self.deaths >= self._deaths or not self._thread.is_alive()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def _run(self) -> None:
        group = running().backend.group("samplers")
        while self.deaths < self._deaths and not self._stop.wait(self._every):
            kind = self._random.choices(["kill", "stop", "fork server"], [0.8, 0.15, 0.05])[0]
            if kind == "fork server":
                for pid in fork_servers():
                    self._end(pid, signal.SIGKILL, kind)
                continue
            for rank in self._random.sample(range(self._samplers), self._random.choice([1, 1, 1, 2, 3])):
                pid = group.info(rank).pid
                if kind == "stop":
                    self._end(pid, signal.SIGSTOP, kind)
                    threading.Timer(STOPPED_SECONDS, self._end, (pid, signal.SIGKILL, None)).start()
                else:
                    self._end(pid, signal.SIGKILL, kind)

    def _end(self, pid: int, number: int, kind: str | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            if kind:
                self.counts[kind] += 1


def chaos(deaths: int, every: float, samplers: int, seed: int) -> dict[str, Any]:
    """One run; raises where a row is lost, doubled or torn."""
    groups = [DeviceGroup("samplers", samplers, "CPU"), DeviceGroup("trainer", 1, "CPU")]
    begun, seen, torn = time.perf_counter(), Counter[int](), 0
    with twinkle.session("ray", groups=groups, restart="group"):
        on_samplers: Any = {"device_mesh": DeviceMesh.from_sizes(dp_size=samplers), "remote_group": "samplers"}
        made, trainer = Sampler(**on_samplers), twinkle.on("trainer").create(Trainer)
        sync = WeightSync(trainer, made)
        sync()
        killer = Killer(samplers, deaths, every, seed)
        sent = [0]

        def source() -> Iterator[list[int]]:
            while not killer.over:
                yield list(range(sent[0], sent[0] + 8))
                sent[0] += 8

        before = None
        killer.start()
        with twinkle.stream(source(), made.make, rows=8, ahead=64, order="arrival") as batches:
            for number, batch in enumerate(batches):
                rows = twinkle.get(batch)
                seen.update(int(row[0]) for row in rows)
                torn += sum(len(set(row[1:].tolist())) > 1 for row in rows)
                if number % 8 == 7:
                    twinkle.get(trainer.step())
                    sync()
                if before is None and killer.deaths >= deaths // 10:
                    before = Driver()
            stats = batches.stats()
            aside = batches.set_aside
        grown = Driver().since(before) if before is not None else {}
    time.sleep(STOPPED_SECONDS + 2)
    lost = [row for row in range(sent[0]) if not seen[row]]
    return {
        "deaths": dict(killer.counts),
        "rows": sent[0],
        "lost": len(lost),
        "doubled": sum(count > 1 for count in seen.values()),
        "torn": torn,
        "set_aside": len(aside),
        "redone": stats.redone,
        "versions": sync.version,
        "left_over": len(children()),
        "driver": grown,
        "seconds": round(time.perf_counter() - begun, 1),
    }


def plain(deaths: int, every: float, samplers: int) -> dict[str, Any]:
    """The growth of a driver of plain Ray that loses and makes as many actors."""
    ray.init("local", num_cpus=samplers + 1, include_dashboard=False, log_to_driver=False)

    @ray.remote
    class Plain:
        def make(self, rows: list[int]) -> np.ndarray:
            time.sleep(0.02)
            return np.zeros((len(rows), 5))

        def end(self) -> None:
            os._exit(1)

    actors = [Plain.remote() for _ in range(samplers)]  # type: ignore[attr-defined]  # Ray's decorator
    before, began = None, time.perf_counter()
    for death in range(deaths):
        rank = death % samplers
        with contextlib.suppress(ray.exceptions.RayActorError):
            ray.get(actors[rank].end.remote())
        actors[rank] = Plain.remote()  # type: ignore[attr-defined]  # Ray's decorator
        until = time.perf_counter() + every
        while True:
            ray.get([actor.make.remote([1, 2]) for actor in actors])
            if time.perf_counter() >= until:
                break
        if before is None and death >= deaths // 10:
            before = Driver()
    grown = Driver().since(before) if before is not None else {}
    ray.shutdown()
    return {"deaths": deaths, "driver": grown, "seconds": round(time.perf_counter() - began, 1)}


def main() -> None:
    """Run it and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--deaths", type=int, default=1200)
    parser.add_argument("--every", type=float, default=1.0)
    parser.add_argument("--samplers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plain", action="store_true", help="plain Ray instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.plain:
        found = plain(options.deaths, options.every, options.samplers)
    else:
        found = chaos(options.deaths, options.every, options.samplers, options.seed)
    print(json.dumps(found, indent=1))
    if options.json:
        options.json.write_text(json.dumps(found))
    bad = [name for name in ("lost", "doubled", "torn", "set_aside", "left_over") if found.get(name)]
    raise SystemExit(f"not exactly once: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
