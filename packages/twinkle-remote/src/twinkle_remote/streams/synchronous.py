"""The engine of a stream with `ahead=0`, and in one process: the hand-written loop, with its calls in its order."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.lazy.table import known_rows
from twinkle_remote.rows.cut import rows_of
from twinkle_remote.streams.schedule import Delivered
from twinkle_remote.streams.source import PlacedRows, gathered
from twinkle_remote.streams.stages import PlainStage, check_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.schedule import Rules
    from twinkle_remote.streams.source import SourceBatch
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.stats import StreamStats

    Row = tuple[int, tuple[PlacedRows, int]]  # its position, and where it is

_log = logging.getLogger("twinkle.remote")


class SynchronousEngine:
    """Makes a batch when the loop asks for it, by whole calls of the stages; the last one may be that of `keep=`."""

    works_ahead, lock = False, nullcontext()

    def __init__(self, stages: Sequence[Stage], rules: Rules, stats: StreamStats) -> None:
        self._stages, self._rules, self._stats = stages, rules, stats
        self._left: list[Row] = []  # rows that were read
        self._error: Exception | None = None  # of the source
        self._unchecked: list[tuple[Lazy[Any], str, int]] = []  # results for the last batch, and the rows of each

    def next(self, read: Callable[[], SourceBatch | None]) -> tuple[Any, Delivered]:
        """The next batch; without rows at the end of the epoch."""
        self._check_results()
        made, gone, used = list["Row"](), list[int](), 0
        wanted, version = self._rules.rows, self._stats.version
        while not made or (wanted and len(made) < wanted):
            missing = wanted and wanted - len(made)
            self._fill(read, used + (missing or 1))
            rows = self._left[used : used + missing if missing else None]
            if not rows:
                break
            used += len(rows)
            made += self._make(rows, gone)
        if self._error is not None and not made:
            error, self._error = self._error, None
            raise error
        del self._left[:used]  # if a stage raised, the next batch begins with these rows again
        self._stats.lag[self._stats.version - version] += len(made)
        begun, ended = [version] * len(made), [self._stats.version] * len(made)
        return gathered([found for _, found in made]), Delivered([row for row, _ in made], begun, ended, gone)

    def _fill(self, read: Callable[[], SourceBatch | None], rows: int) -> None:
        """Read until so many rows are there, or the source is at its end; its error is raised after the rows before."""
        while len(self._left) < rows and self._error is None:
            try:
                batch = read()
            except Exception as error:
                self._error = error
                return
            if batch is None:
                return
            found = [(row, (batch.rows, place)) for place, row in enumerate(batch.positions)]
            self._left += [one for one in found if one[0] not in batch.gone]

    def _make(self, rows: Sequence[Row], gone: list[int], *, again: bool = False) -> list[Row]:
        """The rows that the stages make of others and that are kept; one by one where a stage raises for some."""
        try:
            return self._through(rows, gone)
        except Exception as error:
            if self._rules.on_error == "raise":
                raise
            if not again:
                return [one for row in rows for one in self._make([row], gone, again=True)]
            _log.warning("row %d of the stream is skipped: %s: %s", rows[0][0], type(error).__name__, error)
            self._stats.skipped += 1
            gone.append(rows[0][0])
            return []

    def _through(self, rows: Sequence[Row], gone: list[int]) -> list[Row]:
        value, count, refused = gathered([found for _, found in rows]), len(rows), list[int]()
        for index, stage in enumerate(self._stages):
            if isinstance(stage, PlainStage) and stage.keeps:
                refused = stage.refused(value, count)
                continue
            began = time.perf_counter()
            value = stage.function(value)
            self._stats.ran(index, count, time.perf_counter() - began)
            if isinstance(value, Lazy):
                self._unchecked.append((value, stage.name, count))
                if self._rules.on_error == "skip":
                    value.wait()
            elif (made := rows_of(value, stage.name)) is not None or isinstance(stage, PlainStage):
                check_rows(stage.name, made, count)  # a launched process that is not rank 0 may have None
        self._stats.refused += len(refused)
        gone += [rows[place][0] for place in refused]
        whole = PlacedRows(value, count)
        return [(row, (whole, place)) for place, (row, _) in enumerate(rows) if place not in refused]

    def _check_results(self) -> None:
        """Check the rows of the last batch's lazy results that are done, without waiting for others or fetching any."""
        unchecked, self._unchecked = self._unchecked, []
        for value, name, rows in unchecked:
            if value.done() and (made := known_rows(value)) is not None:
                check_rows(name, made, rows)

    def wake(self) -> None:
        """A version was published."""

    def close(self) -> None:
        """End the engine: the loop has all that is at work."""
