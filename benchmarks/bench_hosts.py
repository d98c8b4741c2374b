"""Hand-over, weight sync and calls between hosts, on links of a set rate, against raw TCP and a plain Ray loop.

    python benchmarks/bench_hosts.py [--rate 500mbit] [--megabytes 64] [--ranks 8] [--rounds 5] [--json FILE]

It makes two hosts in network namespaces, as `tests/ray/hosts` does, with a link of the given rate each, starts a Ray
node on both, and runs itself on the first one; where the machine does not allow that, it says why and measures nothing.
In turns, the same bytes go from a worker on the first host to one on the second host: as one raw stream of TCP, as the
lazy result that a call takes, and by a weight sync. The shares are of the raw stream's bandwidth, by medians. The call
is an empty one on ranks of the second host, and as a plain loop over actors of Ray that were started by hand; its
seconds are divided by those of the loop.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_ray import WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "ray" / "hosts" / "tools"))

NAMES = ("one", "two")
CALLS = 20
SECONDS = 600.0
PART = 4 << 20  # bytes of a tensor


@twinkle.remote_class()
class Side:
    """One end of the link.

    Args:
        nbytes: What it holds, and hands over.
    """

    def __init__(self, nbytes: int) -> None:
        self.rows = np.ones((nbytes // 4096, 512))
        self.tensors = {f"t{i}": torch.ones(PART // 4) for i in range(nbytes // PART)}

    def weights(self) -> Mapping[str, torch.Tensor]:
        """The tensors."""
        return self.tensors

    @twinkle.remote_function(dispatch="all", collect="first")
    def make(self) -> Any:
        """Rows that stay on this host."""
        return self.rows.copy()

    @twinkle.remote_function(dispatch="all", collect="first")
    def take(self, rows: Any) -> int:
        """Count the rows that have come."""
        return len(rows)

    @twinkle.remote_function(dispatch="all", collect="first")
    def listen(self) -> tuple[str, int]:
        """Take one stream in a thread; returns where."""
        server = socket.create_server(("", 0))
        threading.Thread(target=_swallow, args=(server,), daemon=True).start()
        return socket.gethostbyname(socket.gethostname()), int(server.getsockname()[1])

    @twinkle.remote_function(dispatch="all", collect="first")
    def stream(self, at: tuple[str, int], nbytes: int) -> float:
        """Send bytes; returns the seconds until the other end has all of them."""
        with socket.create_connection(at) as connection:
            began = time.perf_counter()
            connection.sendall(self.rows.view(np.uint8).reshape(-1)[:nbytes].data)
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
            return time.perf_counter() - began


def _swallow(server: socket.socket) -> None:
    buffer = bytearray(1 << 20)
    with server, server.accept()[0] as connection:
        while connection.recv_into(buffer):
            pass


@twinkle.remote_class()
class Small:
    """Does nothing."""

    @twinkle.remote_function(dispatch="all")
    def nothing(self) -> None:
        """Return nothing."""


class Plain:
    """The same as an actor of Ray."""

    def nothing(self) -> None:
        """Return nothing."""


def seconds_of(function: Callable[[], object]) -> float:
    """The seconds that a function takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def transfers(megabytes: int, rounds: int) -> list[dict[str, Any]]:
    """The medians of all ways to bring the bytes to the other host."""
    nbytes = megabytes << 20
    near, far = (twinkle.on(name).create(Side, nbytes) for name in NAMES)
    taken: dict[str, list[float]] = {"raw stream": [], "hand-over": [], "weight sync": []}
    with WeightSync(near, far, check="never") as sync:
        for number in range(rounds + 1):
            raw: float = twinkle.get(near.stream(twinkle.get(far.listen()), nbytes))
            made: Any = near.make()
            made.wait()
            handed = seconds_of(lambda made=made: twinkle.get(far.take(made)))  # type: ignore[misc]  # a default binds it
            synced = seconds_of(sync)
            if number:  # the first round opens connections
                for each, seconds in zip(taken.values(), (raw, handed, synced), strict=True):
                    each.append(seconds)
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return [
        {"name": name, "megabytes": megabytes, "seconds": seconds, "of_raw": medians["raw stream"] / seconds}
        for name, seconds in medians.items()
    ]


def calls(ranks: int, rounds: int) -> list[dict[str, Any]]:
    """The best times of an empty call on ranks of the other host."""
    part = twinkle.on("ranks").create(Small)
    actor_class: Any = ray.remote(Plain)
    actors = [actor_class.options(num_cpus=0, resources={"two": 0.001}).remote() for _ in range(ranks)]

    def loop() -> None:
        ray.get([actor.nothing.remote() for actor in actors])

    def call() -> None:
        twinkle.get(part.nothing())

    ways = {"plain Ray loop": loop, "call": call}
    best = dict.fromkeys(ways, (1e9, 1e9))
    for _ in range(rounds):
        for name, function in ways.items():
            function()
            own = time.process_time()
            wall = seconds_of(lambda function=function: [function() for _ in range(CALLS)]) / CALLS  # type: ignore[misc]  # too
            best[name] = min(best[name][0], wall), min(best[name][1], (time.process_time() - own) / CALLS)
    plain = best["plain Ray loop"]
    return [
        {"name": name, "ranks": ranks, "seconds": wall, "driver_seconds": driver}
        | {"of_loop": wall / plain[0], "driver_of_loop": driver / plain[1]}
        for name, (wall, driver) in best.items()
    ]


def inside(address: str, options: argparse.Namespace) -> None:
    """Measure, on the first host; prints the rows as JSON."""
    groups = [DeviceGroup(name, 1, name) for name in NAMES]
    with twinkle.session("ray", groups=[*groups, DeviceGroup("ranks", options.ranks, "two")], address=address):
        rows = [*transfers(options.megabytes, options.rounds), *calls(options.ranks, options.rounds)]
    print("ROWS " + json.dumps([{"rate": options.rate, **row} for row in rows]), flush=True)


def on_hosts(arguments: list[str], rate: str) -> list[dict[str, Any]]:
    """Run this file on the first of two hosts."""
    from clusters import environment, start_nodes
    from hosts import Hosts

    with Hosts(NAMES, rate) as hosts, tempfile.TemporaryDirectory() as logs:
        variables = environment(hosts, secrets.token_hex(32))
        head = start_nodes(hosts, NAMES, variables, Path(logs), amount=64)
        command = hosts.inside("one", sys.executable, __file__, *arguments, "--inside", head)
        done = subprocess.run(
            command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
        )
    found = next(line for line in done.stdout.splitlines() if line.startswith("ROWS "))
    rows: list[dict[str, Any]] = json.loads(found.removeprefix("ROWS "))
    return rows


def main() -> None:
    """Print a row for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="500mbit", help="of each link, in tc's units")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--ranks", type=int, default=8, help="of the empty call")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--inside", metavar="ADDRESS", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        inside(options.inside, options)
        return
    from hosts import why_not

    reason = why_not()
    if reason is not None:
        print(f"not measured: {reason}")
        return
    rows = on_hosts(sys.argv[1:], options.rate)
    for row in rows:
        share = f"{row['of_raw']:.2f} of raw TCP" if "of_raw" in row else f"{row['of_loop']:.2f} of the plain loop"
        driver = f", driver {row['driver_of_loop']:.2f}" if "driver_of_loop" in row else ""
        print(f"{row['name']:<32} {row['seconds'] * 1e3:9.2f} ms  {share}{driver}")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
