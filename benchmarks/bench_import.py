"""Time of importing the light packages, as a ratio to starting a bare interpreter in the same run."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

ROUNDS = 15
PROGRAMS = {"python -I": "pass", "import twinkle_mesh": "import twinkle_mesh", "import twinkle": "import twinkle"}
PROGRAMS["import twinkle_remote"] = "import twinkle_remote"
LIMITS = {"import twinkle_mesh": 3.5, "import twinkle": 5.0}


def seconds(program: str) -> float:
    """Wall time of one interpreter that runs a program."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-c", program], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Time the programs in turns, so that a busy machine slows all of them, and print medians and ratios."""
    times: dict[str, list[float]] = {name: [] for name in PROGRAMS}
    for program in PROGRAMS.values():
        seconds(program)
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            times[name].append(seconds(program))
    base = times["python -I"]
    for name, values in times.items():
        ratio = statistics.median(value / bare for value, bare in zip(values, base, strict=True))
        goal = f"  goal <= {LIMITS[name]}x" if name in LIMITS else ""
        print(f"{name:<24}{statistics.median(values) * 1e3:8.1f} ms{ratio:8.2f}x{goal}")


if __name__ == "__main__":
    main()
