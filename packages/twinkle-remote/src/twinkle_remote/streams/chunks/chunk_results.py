"""The results of chunks until their rows are delivered: what the next stage reads, and what batches are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.protocol.component import same_component
from twinkle_remote.streams.chunks.chunk_result import ChunkResult, join_rows, joined
from twinkle_remote.streams.rows.rows_info import RowsInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.protocol.backend import Store
    from twinkle_remote.sessions.weight_sources import WorkersOf
    from twinkle_remote.streams.chunks.spool import Spool
    from twinkle_remote.streams.rows.row_source import RowSource
    from twinkle_remote.streams.schedule.decisions import Assignment, Part, StageCall
    from twinkle_remote.streams.stages import Stage


class ChunkResults:
    """The results, by chunk.

    Args:
        source: The rows that chunks begin with.
        last: The last stage.
        spool: Where rows are that were finished before a resume, or None.
    """

    def __init__(self, source: RowSource, last: Stage, spool: Spool | None) -> None:
        self._source = source
        self._last = last
        self._spool = spool
        self._results: dict[int, ChunkResult] = {}

    def __len__(self) -> int:
        """Number of chunks with a result."""
        return len(self._results)

    def clear(self) -> None:
        """Forget all."""
        self._results.clear()

    def keep(self, work: StageCall, result: ChunkResult) -> None:
        """A stage is done for the chunks of a call."""
        offset = 0
        for part in work.parts:
            self._results[part.chunk] = result.at(offset)
            offset += part.rows

    def before(self, work: StageCall) -> tuple[tuple[ChunkResult, int], ...]:
        """The results of the stage before, of which each chunk has so many rows."""
        return tuple([(self._results[part.chunk], part.rows) for part in work.parts])

    def given(self, work: StageCall) -> Any:
        """The arguments with which a stage is called."""
        if work.stage:
            return joined(self.before(work))
        spans = work.spans()
        if self._spool is not None:
            for first, rows in spans:
                self._spool.drop(first, rows)
        return join_rows([self._source.rows(first, rows) for first, rows in spans])

    def batch(self, parts: Sequence[Part], version: int) -> tuple[Any, RowsInfo]:
        """The rows of a batch and their info; they are not kept any more.

        Args:
            parts: The rows.
            version: The version at delivery.
        """
        begun: list[int] = []
        ended: list[int] = []
        indices: list[int] = []
        epoch = 0
        pieces = []
        for part in parts:
            result = self._take(part)
            pieces.append((result.at(part.offset), part.rows))
            begun += [part.begun] * part.rows
            ended += [part.ended] * part.rows
            numbers, epoch = self._source.numbers(part.first, part.rows)
            indices += numbers
        value = joined(pieces)
        for part in parts:
            if part.whole:
                self._results.pop(part.chunk, None)
            self._source.use(part.first, part.rows)
        return value, RowsInfo(begun, ended, [version - one for one in begun], indices, epoch)

    def replace(self, work: Assignment, parts: Sequence[int]) -> None:
        """Give the chunks that take the place of one its result of the stage before."""
        result = self._results.pop(work.chunk, None)
        if result is not None and work.stage:
            for offset, part in enumerate(parts):
                self._results[part] = result.at(offset)

    def lost_with(self, workers: WorkersOf, store: Store) -> Sequence[tuple[int, Sequence[ChunkResult]]]:
        """The chunks of whose rows some ranks of a component had the only copy, or that of a column; with these parts.

        Args:
            workers: The ranks, which are lost.
            store: Where the backend keeps results.
        """
        found = []
        for chunk, result in self._results.items():
            parts = [one for one in result.holders() if _is_held_by(one, workers)]
            lost = [one for one in parts if not all(map(store.outlives_worker, one.payloads()))]
            if lost:
                found.append((chunk, lost))
        return found

    def _take(self, part: Part) -> ChunkResult:
        spooled = None if self._spool is None else self._spool.take(self._last, part.first)
        if spooled is not None:
            return spooled
        return self._results[part.chunk]


def _is_held_by(result: ChunkResult, workers: WorkersOf) -> bool:
    return (
        result.component is not None
        and not set(result.ranks).isdisjoint(workers.ranks)
        and same_component(result.component, workers.component)
    )
