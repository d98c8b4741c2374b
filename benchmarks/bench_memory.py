"""The driver's memory over many calls, and over many hand-overs in a chain, on 64 threads and on 8 Ray workers.

    python benchmarks/bench_memory.py [--mode threads ray] [--calls 10000] [--chain 1000] [--json FILE]

The memory is the resident set of the driver's process (on threads the workers are in it) after a collection, against
that after a tenth of the calls, and in megabytes. A link of the chain takes the lazy result of the link before.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import time
from typing import TYPE_CHECKING, Any

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_remote import submit

if TYPE_CHECKING:
    from collections.abc import Callable

WORKERS = {"threads": 64, "ray": 8}


@twinkle.remote_class()
class Echo:
    """Returns its rows."""

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: Any) -> Any:
        """Identity."""
        return rows


def resident_bytes() -> int:
    """Resident set of this process."""
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(step: Callable[[], None], steps: int) -> dict[str, float]:
    """Run some steps; what memory they have taken after the first tenth, and how long all took."""
    first = steps // 10
    began = time.perf_counter()
    for _ in range(first):
        step()
    before = resident_bytes()
    for _ in range(steps - first):
        step()
    after = resident_bytes()
    return {"grown_bytes": after - before, "resident_bytes": after, "seconds": time.perf_counter() - began}


def measure(mode: str, calls: int, chain: int) -> list[dict[str, Any]]:
    """Both rows of one backend."""
    workers = WORKERS[mode]
    groups = [DeviceGroup(name, workers, "CPU") for name in ("here", "there")]
    with twinkle.session(mode, groups=groups):
        here, there = (twinkle.on(group.name).create(Echo) for group in groups)
        rows = list(range(workers))

        def call() -> None:
            assert here.rows(rows) == rows

        at = [here, there]
        link: Any = submit(here.rows, rows)

        def hand_over() -> None:
            nonlocal link
            at.reverse()
            link = submit(at[0].rows, link)
            link.wait()

        found = [
            {"mode": mode, "name": name, "ranks": workers, "steps": steps} | growth(step, steps)
            for name, step, steps in (("calls", call, calls), ("hand-overs in a chain", hand_over, chain))
        ]
        assert link.result() == rows
        return found


def main() -> None:
    """Print the rows, and write them as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", nargs="+", default=["threads", "ray"], choices=["threads", "ray"])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--chain", type=int, default=1_000)
    parser.add_argument("--json", help="file for the figures")
    options = parser.parse_args()
    figures: list[dict[str, Any]] = []
    for mode in options.mode:
        for row in measure(mode, options.calls, options.chain):
            print(
                f"{row['mode']}  {row['ranks']} workers  {row['steps']} {row['name']}: "
                f"{row['grown_bytes'] / 1e6:+.1f} MB  ({row['seconds']:.0f} s)",
                flush=True,
            )
            figures.append(row)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
