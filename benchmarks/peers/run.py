"""Everything that a user would take instead, in one run: `make peers`, or parts of it by the names of scripts or rows.

    python benchmarks/peers/run.py [loader weights "64 MB" ...] [--passes 3]

Each pass runs every script once, one after the other, so that the passes of a row lie minutes apart; both sides of a
row run in turns within a script. The table has the median of the passes, and as spread the lowest and highest ratio of
a pass. It is written to `out/peers.json` and `out/peers.md`; rows of an earlier run that this one did not measure stay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from environments import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).parent
SCRIPTS = ("arguments", "kit", "sampling", "streams", "training", "weights", "start", "loader", "served")
OUT = ROOT / "out"


def measure(script: str, rows: list[str]) -> Iterator[dict[str, Any]]:
    """Run one script, and yield what it prints of its rows."""
    command = [sys.executable, str(FOLDER / f"{script}.py"), *rows]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                yield {**json.loads(line), "script": script}


def summary(passes: list[dict[str, Any]]) -> dict[str, Any]:
    """One row out of its passes."""
    measured = [one for one in passes if one["ratio"] is not None]
    if not measured:
        return passes[-1]
    ratios = [one["ratio"] for one in measured]
    # With one pass, the spread is that of its rounds.
    spread = [min(ratios), max(ratios)] if len(ratios) > 1 else measured[0]["spread"]
    return {
        **measured[-1],
        **{name: median(one[name] for one in measured) for name in ("ours", "theirs", "ratio", "load")},
        "spread": spread,
        "passes": len(ratios),
        "date": time.strftime("%Y-%m-%d"),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| what | against | ours | theirs | ratio | of the passes | at most |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        against = f"{row['peer']} {row['version']}".strip()
        aim = "" if row["at_most"] is None else f"{row['at_most']:g}x"
        if row["ratio"] is None:
            lines.append(f"| {row['row']} | {against} | left out: {row['left_out']} | | | | {aim} |")
            continue
        low, high = row["spread"]
        ours, theirs = (f"{row[name]:.3g} {row['unit']}" for name in ("ours", "theirs"))
        lines.append(
            f"| {row['row']} | {against} | {ours} | {theirs} | {row['ratio']:.2f}x | {low:.2f} to {high:.2f} | {aim} |"
        )
    return "\n".join(lines) + "\n"


def write(found: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    """Write both files, in the order of the scripts."""
    OUT.mkdir(exist_ok=True)
    file = OUT / "peers.json"
    kept = json.loads(file.read_text())["rows"] if file.is_file() else []
    rows = {(row["row"], row["peer"]): row for row in kept}
    for key, passes in found.items():
        row = summary(passes)
        if row["ratio"] is not None or key not in rows:  # a side that failed does not remove what was measured
            rows[key] = row
    ordered = sorted(rows.values(), key=lambda row: SCRIPTS.index(row["script"]))
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    file.write_text(json.dumps({"machine": machine, "rows": ordered}, indent=1) + "\n")
    (OUT / "peers.md").write_text(table(ordered))


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description="Compare with what a user would take instead.")
    parser.add_argument("names", nargs="*", help=f"scripts ({', '.join(SCRIPTS)}) or parts of names of rows")
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    there = [script for script in SCRIPTS if (FOLDER / f"{script}.py").is_file()]
    scripts = [name for name in options.names if name in SCRIPTS]
    rows = [name for name in options.names if name not in SCRIPTS]
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for number in range(options.passes):
        for script in there:
            if scripts and script not in scripts:
                continue
            print(f"pass {number + 1} of {options.passes}: {script}, load {os.getloadavg()[0]:.1f}", flush=True)
            for result in measure(script, rows):
                found.setdefault((result["row"], result["peer"]), []).append(result)
                write(found)  # a run that is ended keeps what it has
    if not found:
        sys.exit(f"no row is called {' or '.join(rows)}")
    print(table([summary(passes) for passes in found.values()]))
    if any(one["left_out"] and one["left_out"].startswith("failed") for passes in found.values() for one in passes):
        sys.exit("a side failed: its output stands above")


if __name__ == "__main__":
    main()
