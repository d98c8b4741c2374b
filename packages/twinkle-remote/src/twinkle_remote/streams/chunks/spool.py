"""Finished rows on disk, so that a resume need not make them again.

Workers write them. A client of a served session names no folder there: it fetches them, and writes them itself.
"""

from __future__ import annotations

import logging
import os
import pickle
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twinkle_remote.errors import SessionLostError
from twinkle_remote.sessions.current import active
from twinkle_remote.streams.chunks.chunk_result import ChunkResult, joined
from twinkle_remote.streams.stages import RemoteStage

if TYPE_CHECKING:
    from concurrent.futures import Future

    from twinkle_remote.call.lazy_values.lazy import Lazy
    from twinkle_remote.call.pending.pending_call import PendingCall
    from twinkle_remote.streams.schedule.decisions import Assignment
    from twinkle_remote.streams.stages import Stage

_log = logging.getLogger("twinkle.remote")
_ENDING = ".rows"
_FETCHES = 2  # at a time


class SpooledRows(NamedTuple):
    """A file of finished rows.

    Attributes:
        path: The file.
        first: Position of its first row in the source.
        rows: Its rows.
        begun: Version when the first stage began.
        ended: Version when the last stage was done.
    """

    path: Path
    first: int
    rows: int
    begun: int
    ended: int


class Spool:
    """A folder of finished rows, written by the workers that made them, or by the client of a served session.

    Args:
        folder: A folder that every worker and this process can write to; of a served session, only this process. It is
            made where it is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self._writes: list[PendingCall] = []
        self._fetches: list[Future[None]] = []
        self._fetcher: ThreadPoolExecutor | None = None
        self._is_lost = False
        self._read: dict[Path, ChunkResult] = {}
        self._rows: dict[int, SpooledRows] = {}
        self.id = uuid.uuid4().hex[:12]

    def write(self, stage: Stage, work: Assignment, result: ChunkResult, begun: int, ended: int) -> None:
        """Write the rows of a chunk; the worker that made them does it, before it gets its next chunk."""
        path = str(self._folder / f"{self.id}-{work.first}-{work.rows}-{begun}-{ended}{_ENDING}")
        value = joined([(result, work.rows)])
        if isinstance(stage, RemoteStage) and _is_served():
            self._fetcher = self._fetcher or ThreadPoolExecutor(_FETCHES, "twinkle-spool")
            self._fetches.append(self._fetcher.submit(self._fetch, value, path))
        elif isinstance(stage, RemoteStage):
            self._writes.append(stage.on_one(work.rank, _write, value, path))
        else:
            _write(None, value, path)
        self._check_writes()

    def restore(self, version: int) -> None:
        """Look which rows were finished before a resume; those of versions that it does not know are left out.

        Args:
            version: The version now.
        """
        self._rows.clear()
        for path in self._folder.glob(f"{self.id}-*{_ENDING}"):
            file = SpooledRows(path, *map(int, path.name.removesuffix(_ENDING).split("-")[1:]))
            if file.ended <= version:
                self._rows |= dict.fromkeys(range(file.first, file.first + file.rows), file)

    def made(self, first: int, rows: int) -> dict[int, tuple[int, int]]:
        """The versions of the begin and the end of those rows that were finished before a resume."""
        here = range(first, first + rows) if self._rows else ()
        return {row: (file.begun, file.ended) for row in here if (file := self._rows.get(row))}

    def drop(self, first: int, rows: int) -> None:
        """Rows are made again: what is on disk of them is too old."""
        for row in range(first, first + rows) if self._rows else ():
            self._rows.pop(row, None)

    def take(self, stage: Stage, row: int) -> ChunkResult | None:
        """A row that was finished before a resume, opened by a worker of the last stage; None if it was not."""
        file = self._rows.pop(row, None)
        if file is None:
            return None
        if file.path not in self._read:
            if isinstance(stage, RemoteStage) and not _is_served():
                rank = file.first % stage.data_ranks
                call = stage.on_one(rank, _open, str(file.path))
                self._read[file.path] = ChunkResult(call, stage.collects[rank][:1])
            else:
                self._read[file.path] = ChunkResult(None, value=_open(None, str(file.path)))
        return self._read[file.path].at(row - file.first)

    def forget_before(self, row: int) -> None:
        """Delete the files whose rows are all before a position."""
        for path in self._folder.glob(f"{self.id}-*{_ENDING}"):
            first, rows = map(int, path.name.split("-")[1:3])
            if first + rows <= row:
                path.unlink(missing_ok=True)
                self._read.pop(path, None)

    def _check_writes(self) -> None:
        over = [call for call in self._writes if call.done()]
        self._writes = [call for call in self._writes if call not in over]
        for call in over:
            if call.failed():
                _log.warning("finished rows were not written to %s: %s", self._folder, call.failure_text())
        fetched = [fetch for fetch in self._fetches if fetch.done()]
        self._fetches = [fetch for fetch in self._fetches if fetch not in fetched]
        for fetch in fetched:
            if (error := fetch.exception()) is not None:
                _log.warning("finished rows were not written to %s: %s", self._folder, error)

    def _fetch(self, rows: Lazy[Any], path: str) -> None:
        """Write rows of a served session."""
        if self._is_lost:
            return
        try:
            _write(None, rows.result(), path)
        except SessionLostError:
            self._is_lost = True  # the others would wait as long for the server
            raise


def _is_served() -> bool:
    runtime = active()
    return runtime is not None and runtime.served is not None


def _write(component: object, value: Any, path: str) -> None:
    """Runs on a worker: write rows so that a file is whole or not there."""
    part = f"{path}.{uuid.uuid4().hex[:8]}.part"
    with Path(part).open("wb") as file:
        pickle.dump(value, file, protocol=pickle.HIGHEST_PROTOCOL)
    os.replace(part, path)


def _open(component: object, path: str) -> Any:
    """Runs on a worker: read rows."""
    with Path(path).open("rb") as file:
        return pickle.load(file)
