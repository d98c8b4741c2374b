"""Deaths of samplers during one run of a stream with weight syncs: what is lost, and what the driver keeps of each.

    python benchmarks/bench_chaos.py [--deaths 120] [--every 1.0] [--samplers 3] [--plain 60] [--seed 0]

A death each second (`--every`), of a rank or of several at once: SIGKILL, or SIGSTOP and then SIGKILL. Each row is to
come once, made with the weights of one version that was current between its begin and its end. The driver's memory
(anonymous), descriptors and threads are taken after a sixth of the deaths and at the end. Plain Ray follows: as many
actors that are killed and started again by hand.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

import twinkle
from twinkle import DeviceGroup, DeviceMesh, WeightSync, current_worker, get, remote_class, remote_function

ROW_SECONDS, WIDTH = 0.02, 4096
KINDS = ("kill", "kill", "kill", "stop")


def started(pid: int) -> int:
    """When a process began, in clock ticks after the host; -1 if it is not there."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return -1


@remote_class()
class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(WIDTH)

    def weights(self) -> dict[str, torch.Tensor]:
        return {"weight": self.weight}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[dict[str, Any]]:
        low, high = float(self.weight.min()), float(self.weight.max())
        time.sleep(ROW_SECONDS * len(rows))
        again = float(self.weight.min()), float(self.weight.max())
        pid = os.getpid()
        at = {"rank": current_worker().rank, "pid": pid, "started": started(pid)}
        return [{"row": row, "weights": [low, high, *again], **at} for row in rows]

    @remote_function(dispatch="all", collect="first")
    def update(self) -> None:
        self.weight += 1.0


class Figures:
    """Memory and handles of a process: MiB of anonymous memory, descriptors, threads."""

    def __init__(self) -> None:
        status = Path("/proc/self/status").read_text()
        self.memory = int(status.split("RssAnon:")[1].split()[0]) / 1024
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.threads = len(os.listdir("/proc/self/task"))

    def since(self, before: Figures, deaths: int) -> dict[str, float]:
        grown = self.memory - before.memory
        each = round(1024 * grown / max(deaths, 1), 1)
        more = {"descriptors": self.descriptors - before.descriptors, "threads": self.threads - before.threads}
        return {"MiB": round(grown, 1), "KiB a death": each, **more}


class Reaper(threading.Thread):
    """Kills ranks now and then, until it has killed enough."""

    def __init__(self, deaths: int, every: float, draw: random.Random) -> None:
        super().__init__(name="reaper", daemon=True)
        self.left, self.done, self.kinds = deaths, 0, Counter[str]()
        self._every, self._draw = every, draw
        self.known: dict[int, tuple[int, int]] = {}  # by rank: its process, and when that began
        self.killed: set[tuple[int, int]] = set()  # numbers of processes are used again

    def run(self) -> None:
        while self.left > 0:
            time.sleep(self._every)
            alive = [one for one in list(self.known.values()) if one not in self.killed]
            count = min(len(alive), self.left, self._draw.choice((1, 1, 1, 2, 3)))
            for pid, start in self._draw.sample(alive, count):
                kind = self._draw.choice(KINDS)
                self.killed.add((pid, start))
                if started(pid) != start:
                    continue
                self.kinds[kind] += 1
                with suppress(ProcessLookupError):
                    if kind == "stop":
                        os.kill(pid, signal.SIGSTOP)
                        time.sleep(0.3)
                    os.kill(pid, signal.SIGKILL)
                self.left -= 1
                self.done += 1


def run(deaths: int, every: float, samplers: int, draw: random.Random) -> dict[str, Any]:
    """A stream under deaths: what was wrong, and what the driver has kept."""
    reaper = Reaper(deaths, every, draw)
    over = threading.Event()

    def rows() -> Any:
        row = 0
        while not over.is_set():
            yield [row, row + 1]
            row += 2

    seen: Counter[int] = Counter()
    made_with: list[tuple[int, list[float], int, int]] = []
    known: dict[int, set[int]] = {0: {0}}  # by version the updates that it may hold
    updates = 0
    first: Figures | None = None
    first_at = 0
    groups = [DeviceGroup("samplers", samplers, "CPU"), DeviceGroup("trainer", 1, "CPU")]
    began = time.monotonic()
    with twinkle.session("ray", groups=groups, restart="group"):
        make: Any = Model
        sampler = make(device_mesh=DeviceMesh.from_sizes(dp_size=samplers), remote_group="samplers")
        trainer = make(remote_group="trainer")
        sync = WeightSync(trainer, sampler)
        with twinkle.stream(rows(), sampler.sample, rows=2, ahead=8 * samplers, order="arrival") as batches:
            for number, batch in enumerate(batches):
                info, made = batches.info, get(batch)
                assert info is not None
                for begun, ended, one in zip(info.begun, info.ended, made, strict=True):
                    seen[one["row"]] += 1
                    made_with.append((one["row"], one["weights"], begun, ended))
                    reaper.known[one["rank"]] = one["pid"], one["started"]
                if number == 20:
                    reaper.start()
                if number % 5 == 4:
                    get(trainer.update())
                    updates += 1
                    version = sync()
                    # the stream syncs itself where no rank is left to give weights to one that has come back
                    known |= {one: {updates - 1, updates} for one in range(max(known) + 1, version)}
                    known[version] = {updates}
                if first is None and reaper.done >= deaths / 6:
                    first, first_at = Figures(), reaper.done
                if reaper.ident and not reaper.is_alive():
                    over.set()
            redone = batches.stats().redone
        last = Figures()
    assert first is not None
    wrong = []
    for row, weights, begun, ended in made_with:
        held = set[int]().union(*(known.get(version, {updates}) for version in range(begun, ended + 1)))
        if len(set(weights)) > 1 or weights[0] not in held:
            wrong.append(f"row {row}: weights {weights}, where versions {begun} to {ended} hold {sorted(held)}")
    doubled = [row for row, count in seen.items() if count > 1]
    lost = sorted(set(range(max(seen) + 1)) - set(seen))
    return {
        "deaths": dict(reaper.kinds), "seconds": round(time.monotonic() - began, 1), "rows": len(seen),
        "redone": redone,
        "versions": sync.version, "lost": lost[:8], "doubled": doubled[:8], "wrong": wrong[:8],
        "driver": last.since(first, reaper.done - first_at),
    }  # fmt: skip


def plain(deaths: int) -> dict[str, float]:
    """Run as many deaths of plain Ray's actors, each started again by hand, and return what the driver keeps."""
    import ray

    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)

    class Counted:
        def work(self) -> int:
            return os.getpid()

    make: Any = ray.remote(Counted)
    actors: list[Any] = [make.remote() for _ in range(3)]
    first: Figures | None = None
    for number in range(deaths):
        if number == deaths // 6:
            first = Figures()
        which = number % len(actors)
        os.kill(ray.get(actors[which].work.remote()), signal.SIGKILL)
        with suppress(ray.exceptions.RayActorError):
            ray.get(actors[which].work.remote())
        actors[which] = make.remote()
        ray.get([actor.work.remote() for actor in actors])
    assert first is not None
    grown = Figures().since(first, deaths - deaths // 6)
    ray.shutdown()
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--deaths", type=int, default=120)
    parser.add_argument("--every", type=float, default=1.0, help="seconds between deaths")
    parser.add_argument("--samplers", type=int, default=3)
    parser.add_argument("--plain", type=int, default=60, help="deaths of plain Ray's actors")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    figures = run(given.deaths, given.every, given.samplers, random.Random(given.seed))
    print(json.dumps(figures), flush=True)
    if given.plain:
        print(json.dumps({"plain Ray": plain(given.plain)}), flush=True)
    if figures["lost"] or figures["doubled"] or figures["wrong"]:
        sys.exit("rows were lost, doubled or torn")


if __name__ == "__main__":
    main()
