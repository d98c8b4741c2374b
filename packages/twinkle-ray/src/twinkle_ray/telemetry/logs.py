"""Workers' output on the driver: each line has its worker's label, and equal lines of several ranks are folded."""

from __future__ import annotations

import re
import sys
import threading
from typing import TYPE_CHECKING, Any

from twinkle_ray.ray_internals import log_deduplicators, log_dispatcher
from twinkle_remote.backends.support import worker_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Source = tuple[str, str]  # a node's address and a process id

_STYLES = re.compile(r"\x1b\[[0-9;:]*m")  # colours, without which the text is the same
_CONTROLS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(line: str) -> str:
    """Return a line without colours and overwritten parts of progress bars, with control characters spelled out.

    Args:
        line: One line, of whatever a process wrote.
    """
    shown = [part for part in _STYLES.sub("", line).split("\r") if part]
    return _CONTROLS.sub(_spelled, shown[-1] if shown else "")


def _spelled(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


_LABEL = re.compile(r"(?P<group>.+)\[(?P<rank>\d+)/(?P<size>\d+)(?P<place>[^\]]*)\]")
_WHO = ("group", "rank", "size")
_HANDLER = "ray_print_logs"
_WINDOW = 0.4  # seconds to wait for equal lines of other ranks
_SAID_BY_US = re.compile(
    r"A worker died or was killed while executing|PYTHON worker processes have been started on node"
)


class Fold:
    """Folds equal lines of several ranks into one; lines wait a moment for equal ones.

    Args:
        write: Called with a line and whether it is from standard error.
    """

    def __init__(self, write: Callable[[str, bool], None]) -> None:
        self._write = write
        self._waiting: dict[tuple[str, str, bool, int], list[tuple[int, str]]] = {}
        self._sizes: dict[str, int] = {}

    def add(self, label: str, line: str, is_error: bool) -> None:
        """Add a line; the n-th equal line of one rank is folded with the n-th of the others."""
        found = _LABEL.fullmatch(label)
        if found is None:
            self._write(f"{label} {line}", is_error)
            return
        group, rank = found["group"], int(found["rank"])
        self._sizes[group] = int(found["size"])
        count = 0
        while any(rank == other for other, _ in self._waiting.get((group, line, is_error, count), ())):
            count += 1
        self._waiting.setdefault((group, line, is_error, count), []).append((rank, label))

    def flush(self) -> None:
        """Write every line that waits, in the order in which they came."""
        waiting, self._waiting = self._waiting, {}
        for (group, line, is_error, _), sources in waiting.items():
            self._write(f"{self._sources(group, sources)} {line}", is_error)

    def _sources(self, group: str, sources: Sequence[tuple[int, str]]) -> str:
        if len(sources) == 1:
            return sources[0][1]
        size = self._sizes[group]
        if len(sources) == size:
            return f"{group}[all {size}]"
        return f"{group}[{_ranges(sorted(rank for rank, _ in sources))} of {size}]"


def _ranges(ranks: Sequence[int]) -> str:
    out: list[list[int]] = []
    for rank in ranks:
        if out and out[-1][1] == rank - 1:
            out[-1][1] = rank
        else:
            out.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in out)


def relabelled(label: str, claimed: object) -> str:
    """Return the new label of a worker whose output names one: its coordinate may change, its group and rank may not.

    Args:
        label: Its label so far.
        claimed: The label that its output names.
    """
    before, now = _LABEL.fullmatch(label), _LABEL.fullmatch(printable(str(claimed)))
    is_same = before is not None and now is not None and before.group(*_WHO) == now.group(*_WHO)
    return now[0] if is_same and now is not None else label


class WorkerLogs:
    """Takes the place of Ray's printer for the lines of our workers, until closed."""

    def __init__(self) -> None:
        self._fold = Fold(_print)
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._tokens: dict[str, int] = {}
        self._labels: dict[Source, str] = {}
        self._ended = threading.Event()
        self._dispatcher: Any = log_dispatcher()
        handlers = [handle for name, handle in self._dispatcher.handlers if name == _HANDLER]
        before = [owner for handle in handlers if isinstance(owner := getattr(handle, "__self__", None), WorkerLogs)]
        # Of a session before, on the same connection, the last lines may still come; of those before that none.
        self._late = {source: label for logs in before for source, label in logs._labels.items()}
        self._others: list[Any] = before[0]._others if before else handlers
        self._skipping: list[tuple[Any, Any]] = []
        if self._others:
            self._skip_ours()
            self._dispatcher.remove_handler(_HANDLER)
            self._dispatcher.add_handler(_HANDLER, self._take)

    def add_labels(self, labels: Mapping[Source, str]) -> None:
        """Take the lines of these workers too, from now on.

        Args:
            labels: Label of each worker, without a coordinate, by its node's address and its process id.
        """
        with self._lock:
            self._labels.update(labels)

    def expect(self, token: str, workers: int) -> threading.Event | None:
        """Return an event that is set when all workers have printed a token twice; None if Ray sends no logs."""
        if not self._others:
            return None
        with self._lock:
            self._tokens[token] = 2 * workers
        return self._ended

    def close(self) -> None:
        """Write the lines that wait, and let Ray print again what it skipped."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._fold.flush()
        for printer, before in self._skipping:
            printer.skip_re = before

    def _skip_ours(self) -> None:
        """Keep Ray from printing long texts about failures that the errors of this package state in one line."""
        for printer in log_deduplicators():
            before = printer.skip_re
            self._skipping.append((printer, before))
            both = _SAID_BY_US.pattern if before is None else f"{_SAID_BY_US.pattern}|{before.pattern}"
            printer.skip_re = re.compile(both)

    def _take(self, data: Mapping[str, Any]) -> None:
        lines = [printable(line) for line in data["lines"]]
        source, is_error = (str(data.get("ip")), str(data.get("pid"))), bool(data["is_err"])
        if source not in self._labels and source not in self._late:
            names = {key: printable(str(data[key])) for key in ("actor_name", "task_name") if data.get(key)}
            for handle in self._others:
                handle({**data, **names, "lines": lines})
            return
        with self._lock:
            known = self._labels if source in self._labels else self._late
            label = known[source] = relabelled(known[source], data.get("actor_name"))
            for line in lines:
                token = next((one for one in self._tokens if line.endswith(one)), "")
                if token:
                    self._count(token)
                if line != token:  # a worker's last line may lack its end
                    self._fold.add(label, line.removesuffix(token), is_error)
            if self._timer is None or not self._timer.is_alive():
                self._timer = threading.Timer(_WINDOW, self._flush)
                self._timer.daemon = True
                self._timer.start()

    def _count(self, token: str) -> None:
        self._tokens[token] -= 1
        if self._tokens[token] == 0:
            self._ended.set()

    def _flush(self) -> None:
        with self._lock:
            self._timer = None
            self._fold.flush()


def _print(line: str, is_error: bool) -> None:
    print(line, file=sys.stderr if is_error else sys.stdout, flush=True)
    worker_line(line, is_error)
