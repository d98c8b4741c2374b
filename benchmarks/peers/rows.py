"""A row of the comparison: ours against a peer, each side in a process of its own, in turns.

A script has sides and rows, and ends with `main(SIDES, ROWS)`:

    @contextmanager
    def ours() -> Iterator[Callable[[], float]]:
        ...                          # set up once: a session, a model, data
        yield one_round              # returns the figure of one round: seconds, CPU seconds, bytes

    SIDES = {"ours": ours, "torch": theirs}
    ROWS = [Row("a sample that draws nothing", peer="torch", ours="ours", theirs="torch", unit="us", at_most=1.5)]

`python benchmarks/peers/SCRIPT.py [text of a row]` starts both sides, each with the interpreter of its peer
(`environments.py`), runs a first round of both that does not count, then `rounds` rounds in alternation, and prints one
line of JSON for each row. The figure is the less the better, and the ratio is ours / theirs: the median of the ratios
of neighbouring rounds; `spread` is the lower and the upper quartile of these. A side imports what it needs inside its
function, because the other side's environment does not have it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any, NoReturn

from environments import ROOT, missing, python_of, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    Side = Callable[[], AbstractContextManager[Callable[[], float]]]
    """Sets up, yields a function that runs one round and returns its figure, and cleans up."""

ENVIRONMENT = {
    "RAY_worker_niceness": "0",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
"""The same for both sides of every row."""


@dataclass(frozen=True)
class Row:
    """One comparison.

    Args:
        name: What is measured, in a few words; its figure is the less the better.
        peer: What a user would take instead: a name of `environments.py`.
        ours: Name of our side.
        theirs: Name of the peer's side.
        unit: Unit of the figures.
        at_most: The ratio to reach; None where there is none.
        rounds: Rounds that count.
        by_hand: What the peer's side is, where a library's name does not say it ("Ray by hand").
        environment: Whose environment our side has, where it is not the project's own.
        timeout_s: Of the setup and of each round.
    """

    name: str
    peer: str
    ours: str
    theirs: str
    unit: str
    at_most: float | None = None
    rounds: int = 7
    by_hand: str | None = None
    environment: str = "ours"
    timeout_s: float = 240.0

    @property
    def against(self) -> str:
        """The peer as the table names it."""
        return self.by_hand or self.peer


@dataclass(frozen=True)
class Result:
    """What a script prints for a row, as a line of JSON; `left_out` says why there are no figures."""

    row: str
    ours: float | None = None
    theirs: float | None = None
    unit: str = ""
    ratio: float | None = None
    spread: tuple[float, float] | None = None
    peer: str = ""
    version: str = ""
    at_most: float | None = None
    load: float | None = None
    left_out: str | None = None


class SideError(RuntimeError):
    """A side did not answer; the text ends with what it printed."""


class Process:
    """One side in a process, with the interpreter of its peer; a context manager.

    Args:
        script: The script that has the side.
        side: Its name there.
        peer: Whose environment; "ours" for our own.
        timeout_s: Of the setup and of each round.
    """

    def __init__(self, script: str, side: str, peer: str, timeout_s: float) -> None:
        self._side, self._timeout_s = f"{side} ({peer})", timeout_s
        answers, child = os.pipe()
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed in __exit__
        self._process = subprocess.Popen(
            [str(python_of(peer)), script, "--side", side, "--answers", str(child)],
            stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT, text=True, pass_fds=(child,), bufsize=1,
            env={**os.environ, **ENVIRONMENT}, cwd=ROOT,
        )  # fmt: skip
        os.close(child)
        self._answers = os.fdopen(answers)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            self._process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()

    def ready(self) -> None:
        """Wait until the side is set up."""
        self._answer()

    def round(self) -> float:
        """Run one round and return its figure.

        Raises:
            SideError: The side raised, ended or took too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("round\n")
        except OSError as error:
            raise self._failed(f"ended: {error}") from None
        return float(self._answer())

    def _answer(self) -> str:
        import select

        if not select.select([self._answers], [], [], self._timeout_s)[0]:
            raise self._failed(f"did not answer within {self._timeout_s:.0f} s")
        line = self._answers.readline()
        if not line or line.startswith("error"):
            raise self._failed(line.strip() or "ended")
        return line

    def _failed(self, what: str) -> SideError:
        self._log.flush()
        self._log.seek(0)
        printed = self._log.read().strip()[-3000:]
        return SideError(f"{self._side} {what}\n{printed}")


def compare(script: str, row: Row) -> Result:
    """Measure a row: both sides in turns, the first round of each uncounted."""
    known: dict[str, Any] = {"row": row.name, "unit": row.unit, "peer": row.against, "at_most": row.at_most}
    reason = missing(row.peer)
    if reason:
        return Result(**known, left_out=f"{row.peer} is not there: {reason}")
    load = os.getloadavg()[0]
    with (
        Process(script, row.ours, row.environment, row.timeout_s) as ours,
        Process(script, row.theirs, row.peer, row.timeout_s) as theirs,
    ):
        ours.ready()
        theirs.ready()
        figures: dict[Process, list[float]] = {ours: [], theirs: []}
        for number in range(row.rounds + 1):
            for side in (ours, theirs) if number % 2 else (theirs, ours):
                figure = side.round()
                if number:
                    figures[side].append(figure)
    ratios = [our / their for our, their in zip(figures[ours], figures[theirs], strict=True)]
    low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else [*ratios] * 3
    return Result(
        **known, ours=median(figures[ours]), theirs=median(figures[theirs]), ratio=median(ratios), spread=(low, high),
        version=version_of(row.peer), load=load,
    )  # fmt: skip


def seconds(job: Callable[[], object]) -> float:
    """The seconds that a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def cpu_seconds(job: Callable[[], object]) -> float:
    """The seconds of CPU, of all threads and of ended children of this process, that a job takes."""

    def used() -> float:
        whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, whose))

    began = used()
    job()
    return used() - began


def _serve(side: Side, answers: int) -> NoReturn:
    """Run one side: answer each line of the standard input with the figure of a round."""
    code = 0
    with os.fdopen(answers, "w", buffering=1) as out:
        try:
            with side() as one_round:
                print("ready", file=out)
                for _ in sys.stdin:
                    print(one_round(), file=out)
        except BaseException as error:  # a process without anybody who would see it
            traceback.print_exc()
            print(f"error: {type(error).__name__}: {str(error)[:200]!r}", file=out)
            code = 1
    sys.stdout.flush()
    sys.exit(code)


def main(sides: Mapping[str, Side], rows: Sequence[Row]) -> None:
    """Run a side, or measure the rows and print them as lines of JSON; the exit status is 1 where a side failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", help="parts of names of rows; without them all")
    parser.add_argument("--side", choices=sides)
    parser.add_argument("--answers", type=int)
    options = parser.parse_args()
    if options.side:
        _serve(sides[options.side], options.answers)
    failed = False
    for row in rows:
        if options.names and not any(name in row.name for name in options.names):
            continue
        try:
            result = compare(sys.argv[0], row)
        except SideError as error:
            failed = True
            print(error, file=sys.stderr, flush=True)
            result = Result(row.name, peer=row.against, unit=row.unit, left_out=f"failed: {str(error).splitlines()[0]}")
        print(json.dumps(vars(result)), flush=True)
    sys.exit(failed)
