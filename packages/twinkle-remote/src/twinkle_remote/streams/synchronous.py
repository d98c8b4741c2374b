"""The engine of a stream with `ahead=0`, and in one process: the hand-written loop, with its calls in its order."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.rows.cut import rows_of
from twinkle_remote.streams.source import PlacedRows, StreamBatch, gathered
from twinkle_remote.streams.stages import PlainStage, check_rows
from twinkle_remote.tables.lazy_table import known_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.streams.schedule import Rules
    from twinkle_remote.streams.source import SourceBatch
    from twinkle_remote.streams.stages import Stage
    from twinkle_remote.streams.stats import Record

_log = logging.getLogger("twinkle.remote")
_UNCHECKED = 64
_Read = tuple[int, tuple[PlacedRows, int]]  # a row that was read: its position, and where it is


class SynchronousEngine:
    """Makes a batch when the loop asks for it, by whole calls of the stages.

    Args:
        stages: The stages, the one of `keep=` last.
        rules: The options.
        record: Where rows are counted.
        version: The version now.

    Attributes:
        version: The version now.
    """

    works_ahead = False

    def __init__(self, stages: Sequence[Stage], rules: Rules, record: Record, version: int) -> None:
        self._stages, self._rules, self._record, self.version = stages, rules, record, version
        self._left: list[_Read] = []  # rows that were read: position, value and place
        self._error: Exception | None = None
        self._unchecked: list[tuple[Lazy[Any], str, int]] = []  # results of stages, and the rows that they were given

    def next(self, read: Callable[[], SourceBatch | None]) -> StreamBatch:
        """The next batch; without rows at the end of the epoch."""
        self._check_results()
        made: list[tuple[PlacedRows, Sequence[int]]] = []
        gone, version, wanted, used = list[int](), self.version, self._rules.rows, 0
        while not made or (wanted and sum(len(rows) for _, rows in made) < wanted):
            missing = wanted and wanted - sum(len(rows) for _, rows in made)
            self._fill(read, used + (missing or 1))
            rows = self._left[used : used + missing if missing else None]
            if not rows:
                break
            made += [(one, kept) for one, kept in self._make(rows, gone) if kept]
            used += len(rows)
        if self._error is not None and not made:
            error, self._error = self._error, None
            raise error
        del self._left[:used]  # if a stage raised, the next batch begins with these rows again
        positions = [row for _, rows in made for row in rows]
        value = gathered([(one, place) for one, _ in made for place in range(one.count)]) if made else None
        self._record.counts.lag[self.version - version] += len(positions)
        return StreamBatch(value, positions, [version] * len(positions), [self.version] * len(positions), gone)

    def _fill(self, read: Callable[[], SourceBatch | None], rows: int) -> None:
        while len(self._left) < rows and self._error is None:
            try:
                batch = read()
            except Exception as error:  # raised after the rows before it
                self._error = error
                return
            if batch is None:
                return
            gone = set(batch.gone)
            every = enumerate(range(batch.first, batch.stop))
            self._left += [(row, (batch.rows, place)) for place, row in every if row not in gone]

    def _make(
        self, rows: Sequence[_Read], gone: list[int], *, again: bool = False
    ) -> list[tuple[PlacedRows, Sequence[int]]]:
        """The stages' result for rows, with the positions that are kept; one by one where a stage raises for some."""
        try:
            return [self._through(rows, gone)]
        except Exception as error:
            if self._rules.on_error == "raise":
                raise
            if not again:
                return [part for row in rows for part in self._make([row], gone, again=True)]
            _log.warning("row %d of the stream is skipped: %s: %s", rows[0][0], type(error).__name__, error)
            self._record.counts.skipped += 1
            gone.append(rows[0][0])
            return []

    def _through(self, rows: Sequence[_Read], gone: list[int]) -> tuple[PlacedRows, Sequence[int]]:
        value, positions = gathered([found for _, found in rows]), [row for row, _ in rows]
        for index, stage in enumerate(self._stages):
            if isinstance(stage, PlainStage) and stage.keeps:
                out = stage.refused(value, len(rows))
                self._record.counts.refused += len(out)
                gone += [positions[place] for place in out]
                whole, kept = PlacedRows(value, len(rows)), [place for place in range(len(rows)) if place not in out]
                value = gathered([(whole, place) for place in kept]) if kept else None
                return PlacedRows(value, len(kept)), [positions[place] for place in kept]
            began = time.perf_counter()
            value = stage.run(value)
            self._record.ran(index, len(rows), time.perf_counter() - began)
            if isinstance(value, Lazy):
                self._unchecked.append((value, stage.name, len(rows)))
                if self._rules.on_error == "skip":
                    value.wait()
            else:
                count = rows_of(value, stage.name)  # a launched process that is not rank 0 may have None
                if count is not None or isinstance(stage, PlainStage):
                    check_rows(stage.name, count, len(rows))
        return PlacedRows(value, len(rows)), positions

    def _check_results(self) -> None:
        """Check the rows of lazy results that are done, without waiting for others or fetching any."""
        done = [one for one in self._unchecked if one[0].done()]
        self._unchecked = [one for one in self._unchecked if not one[0].done()][-_UNCHECKED:]
        for value, name, rows in done:
            if (made := known_rows(value)) is not None:
                check_rows(name, made, rows)

    def publish(self, version: int) -> None:
        """A version was published."""
        self.version = version

    def close(self) -> None:
        """End the engine: the loop has all that is at work."""
