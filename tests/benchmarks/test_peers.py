"""The frame of `make peers`: two sides in turns, a side that fails, and the table."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PEERS = Path(__file__).parents[2] / "benchmarks/peers"
SCRIPT = """
from contextlib import contextmanager
from rows import Row, main

@contextmanager
def side(figures):
    left = iter(figures)
    print("noise on the standard output")
    yield lambda: next(left)

@contextmanager
def broken():
    raise KeyError("no such model")
    yield

SIDES = {"ours": lambda: side([99.0, 2.0, 4.0, 6.0]), "theirs": lambda: side([1.0, 1.0, 4.0, 2.0]), "broken": broken}
ROWS = [
    Row("in turns", "numpy", "ours", "theirs", "us", 1.5, rounds=3),
    Row("a side that fails", "numpy", "ours", "broken", "us", rounds=3),
]
if __name__ == "__main__":
    main(SIDES, ROWS)
"""


def run(folder: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), *arguments],
        capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(PEERS)},
    )  # fmt: skip
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return done, {result["row"]: result for result in results}


def test_sides_run_in_turns_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    done, rows = run(tmp_path, "in turns")
    assert done.returncode == 0, done.stderr
    row = rows.pop("in turns")
    assert not rows
    assert (row["ours"], row["theirs"], row["ratio"], row["spread"]) == (4.0, 2.0, 2.0, [1.5, 2.5])
    assert (row["unit"], row["peer"], row["at_most"], row["left_out"]) == ("us", "numpy", 1.5, None)


def test_what_cannot_be_measured_is_left_out_by_name(tmp_path: Path) -> None:
    done, rows = run(tmp_path)
    assert done.returncode == 1, "a side failed"
    assert "KeyError" in rows["a side that fails"]["left_out"]
    assert "no such model" in done.stderr
    assert rows["in turns"]["ratio"] == 2.0, "the other rows are measured"


def test_the_table_has_a_line_for_each_row(tmp_path: Path) -> None:
    program = "import json, sys, run; print(run.table([run.summary(json.load(sys.stdin))]))"
    _, rows = run(tmp_path, "in turns")
    passes = [rows["in turns"], {**rows["in turns"], "ratio": 3.0}, {**rows["in turns"], "ratio": 2.5}]
    shown = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(passes), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(PEERS)},
    ).stdout  # fmt: skip
    assert "| in turns | numpy" in shown
    assert "| 2.50x | 2.00 to 3.00 | 1.5x |" in shown
