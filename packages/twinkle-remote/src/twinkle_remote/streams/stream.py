"""A stream: a loop over what stages make of the rows of a source, ahead of the loop or at its pace.

A state is the one way back, from an error or Ctrl-C in `next`, the death of the program, to another number of ranks: a
new engine then reads the source from the oldest row that is left.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import driver_line
from twinkle_remote.lazy.lazy import Lazy, set_rows_info
from twinkle_remote.protocol.messages import component_of
from twinkle_remote.sessions.session import active, raise_not_retrieved, running
from twinkle_remote.streams.ahead import AheadEngine
from twinkle_remote.streams.recovery import Recovery
from twinkle_remote.streams.schedule import Rules
from twinkle_remote.streams.source import FORMAT, RowsInfo, RowSource
from twinkle_remote.streams.stages import PlainStage, RemoteStage, rules_of, stage_of
from twinkle_remote.streams.stats import stats_of
from twinkle_remote.streams.synchronous import SynchronousEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from twinkle_remote.protocol.messages import Component
    from twinkle_remote.streams.schedule import OnError, Order, Stale
    from twinkle_remote.streams.source import SourceBatch
    from twinkle_remote.streams.stats import StreamStats

_log = logging.getLogger("twinkle.remote")
_said: set[str] = set()


class Stream:
    """Iterates over batches of finished rows; `stream` makes one.

    A `for` loop over it is an epoch of the source. It is a context manager; its end abandons rows in work.
    """

    _engine: AheadEngine | SynchronousEngine | None = None  # from the first row to `close`; also if __init__ raises

    def __init__(
        self,
        source: Iterable[Any],
        stages: Sequence[Callable[[Any], Any]],
        rules: Rules,
        keep: Callable[[Any], object] | None = None,
        weights_of: object = None,
    ) -> None:
        self._line, self._rules = driver_line(), rules
        self._stages = [stage_of(stage, ahead=rules.ahead > 0) for stage in stages]
        self._keep = []
        if keep is not None:
            if not callable(keep):
                raise TypeError(f"keep is a function of one row that returns whether it is kept, got {keep!r}")
            self._keep = [PlainStage(keep, getattr(keep, "__qualname__", repr(keep)), keeps=True)]
        given = () if weights_of is None else weights_of if isinstance(weights_of, list | tuple) else (weights_of,)
        called = [component for component in map(component_of, given) if component is not None]
        if len(called) < len(given):
            raise TypeError(f"weights_of={weights_of!r} is no component whose weights are synced, or a list of these")
        own = [stage.call.component for stage in self._stages if isinstance(stage, RemoteStage)]
        self._components: Sequence[Component] = [*own, *called]
        self._source = RowSource(source)
        self._recovery: Recovery | None = None
        self._loaded = 0  # version of the state that was loaded, until the first row after it
        self._batch: Sequence[int] = ()  # the rows that the loop has
        self._info: RowsInfo | None = None
        self._ended = self._closed = False  # the epoch is over: the next `for` begins another one
        self._final: dict[str, Any] | None = None  # state of a closed stream
        self._stats = self._new_stats()

    def __iter__(self) -> Stream:
        if self._ended:
            self._ended = self._source.at_end = False
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        raise_not_retrieved()
        before, loaded = self._state(), self._loaded
        try:
            made, rows = self._next()
            if not rows:
                raise StopIteration
            value, self._batch = made, rows  # no signal comes after this: the loop has the batch
        except KeyboardInterrupt:  # wherever it came: what was read since is read again, what is in work is made again
            self.load_state_dict(before)
            self._loaded = loaded  # its weights are those of this program
            raise
        return value

    def _next(self) -> tuple[Any, Sequence[int]]:
        """The next batch and its rows, of which there are none at the end of the epoch."""
        engine = self._running()
        self._source.let_go(self._batch)
        self._batch, asked, over = (), time.perf_counter(), True
        try:
            value, batch = engine.next(self._read)
            over = not batch.rows
        finally:
            self._stats.answered(asked, over=over)
        self._source.let_go(batch.gone)
        self._ended = over
        if not over:
            indices, epoch = self._source.numbers(batch.rows)
            lag = [self._stats.version - begun for begun in batch.begun]
            self._info = RowsInfo(batch.begun, batch.ended, lag, indices, epoch)
            if isinstance(value, Lazy):
                set_rows_info(value, self._info)
        return value, batch.rows

    def _read(self) -> SourceBatch | None:
        began = time.perf_counter()
        try:
            return self._source.read()
        finally:
            self._stats.read_seconds += time.perf_counter() - began

    def _running(self) -> AheadEngine | SynchronousEngine:
        if self._closed:
            raise ValueError("the stream is closed: make another one, and give it the state with load_state_dict")
        if self._engine is None:
            self._stats.version, self._loaded = self._first_version(), 0
            self._engine = self._new_engine()
            runtime = active()
            if runtime is not None:
                runtime.streams.add(self)
        return self._engine

    def _new_engine(self) -> AheadEngine | SynchronousEngine:
        stages = [*self._stages, *self._keep]
        if not (self._rules.ahead and self._stages and _runs_ahead(self._rules.ahead)):
            return SynchronousEngine(stages, self._rules, self._stats)
        if self._recovery is None or self._recovery.runtime is not running():
            of_stage = zip(rules_of(stages)[1], stages, strict=True)
            remote = [(rule.pool, stage) for rule, stage in of_stage if isinstance(stage, RemoteStage)]
            self._recovery = Recovery(remote, running())
        return AheadEngine(stages, self._rules, self._stats, self._recovery, self._source.next_row, self._line)

    def _new_stats(self, version: int = 0) -> StreamStats:
        ranks = (len(stage.peers) if isinstance(stage, RemoteStage) else 1 for stage in self._stages)
        return stats_of(zip([stage.name for stage in self._stages], ranks, strict=True), version)

    @property
    def info(self) -> RowsInfo | None:
        """Versions, lags and indices of the rows of the latest batch; None before the first."""
        return self._info

    def stats(self) -> StreamStats:
        """Metrics since the stream was made or a state was loaded; `print` shows them as a table."""
        return self._stats.snapshot()

    # versions

    @property
    def version(self) -> int:
        """The current version of the weights: the version that was published last."""
        return self._stats.version

    def publish(self, version: int | None = None) -> int:
        """Publish that the stages have new weights; a WeightSync into a stage's component does so by itself.

        Args:
            version: Number of the version, above the last one; None for the next one.

        Returns:
            The number of the version.

        Raises:
            ValueError: The version is not above the last one.
        """
        number = self.version + 1 if version is None else version
        if number <= self.version:
            raise ValueError(f"version={version} is not above the last one, {self.version}")
        self._stats.versions += 1
        self._stats.version = number
        if self._engine is not None:
            self._engine.wake()
        return number

    def runs_on(self, component: Component) -> bool:
        """Whether rows are made with the weights of a component."""
        return any(own.key == component.key for own in self._components)

    @property
    def max_lag(self) -> int | None:
        """The most versions between a row's begin and its use; None without a bound."""
        return self._rules.max_lag

    def works_ahead(self) -> bool:
        """Whether stages work while the loop does."""
        return self._engine is not None and self._engine.works_ahead

    def held(self) -> AbstractContextManager[object]:
        """A block in which no row is begun, for a WeightSync that publishes a version."""
        return nullcontext() if self._engine is None else self._engine.lock

    def weights_arrived(self, version: int | None) -> None:
        """The stages have new weights; a version that arrives after a later one counts as the next one."""
        self.publish(None if version is not None and version <= self.version else version)

    def _first_version(self) -> int:
        """The version with which the stream begins: the latest number of a sync, where one gave components weights.

        Raises:
            ValueError: The components have an older version than the state that was loaded.
        """
        runtime = active()
        if runtime is None:
            return self.version
        found = [(component, source) for component in self._components for source in runtime.weights.of(component)]
        latest = max((source.given for _, source in found), default=0)
        for component, source in found:
            if self._loaded and (not source.given or latest < self._loaded):
                raise ValueError(
                    f"the stream's state is of version {self._loaded}, and {component.name} on group "
                    f"{component.group!r} was given {f'version {source.given}' if source.given else 'no weights'} "
                    "since: load the state of the WeightSync too, and call it before the first row"
                )
        return max(self.version, latest)

    # the state

    def state_dict(self) -> dict[str, Any]:
        """The position: `load_state_dict` needs it to deliver each row once, on any number of ranks.

        You may call it at any moment, also in an `except`. It counts the batches that the loop got. A batch whose
        `next` raised is made again. If an exception left the `with` block, the current batch is made again too. The
        state is JSON-able if the source's own state is.
        """
        return self._state() if self._final is None else self._final

    def _state(self, *, without_batch: bool = False) -> dict[str, Any]:
        rows = () if without_batch else self._batch
        return {"stream": FORMAT, **self._source.state(rows), "version": self.version}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; rows that were in work then are made again.

        Raises:
            ValueError: It is not the state of a stream.
        """
        if state.get("stream") != FORMAT:
            raise ValueError(
                f"this is not the state of a stream: it has stream={state.get('stream')!r}, expected {FORMAT}"
            )
        self._final, self._closed = dict(state), True  # until all of it is loaded
        self._leave()
        self._source.load(state)
        self._loaded = state["version"]
        self._stats, self._batch, self._info = self._new_stats(self._loaded), (), None
        self._ended, self._closed, self._final = False, False, None

    def close(self) -> None:
        """End the stream; rows in work are abandoned, and a run from an earlier state makes them again."""
        self._close(without_batch=False)

    def _close(self, *, without_batch: bool) -> None:
        if self._final is None:
            self._final = self._state(without_batch=without_batch)
        self._closed, self._batch = True, ()
        self._leave()
        if self._recovery is not None:
            self._recovery.close()
            self._recovery = None

    def _leave(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        runtime = active()
        if runtime is not None:
            runtime.streams.remove(self)

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_ending() and self._engine is not None:  # at the end, names of modules and what it would end are gone
            self._engine.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._close(without_batch=kind is not None)


def _runs_ahead(ahead: int) -> bool:
    """Whether the session has workers in other processes; without them `ahead` has no effect, which is said once."""
    runtime = active()
    if runtime is not None and not runtime.backend.in_process:
        return True
    if "synchronous" not in _said:
        _said.add("synchronous")
        mode = "without a session" if runtime is None else f"in mode {runtime.mode!r}"
        _log.warning("ahead=%d has no effect %s: the stream is synchronous", ahead, mode)
    return False


def stream(
    source: Iterable[Any],
    /,
    *stages: Callable[[Any], Any],
    rows: int | None = None,
    ahead: int = 0,
    order: Order = "source",
    max_lag: int | None = None,
    stale: Stale = "use",
    on_error: OnError = "raise",
    keep: Callable[[Any], object] | None = None,
    weights_of: object = None,
) -> Stream:
    """Send the rows of a source through stages, and iterate over the results.

    A row is one sample of the source and what each stage makes of it, such as a prompt with its group of answers.

    Args:
        source: A DataLoader, or any iterable of values with rows; each iteration over it is an epoch.
        *stages: Bound remote functions, partials of them, or functions of one value; rows go through them one after the
            other. A stage returns one row for each row that it gets.
        rows: Rows of a batch; None keeps the batches of the source.
        ahead: Rows in work or finished beyond those that the loop uses. 0 is the synchronous loop: the same calls in
            the same order. In one process and under a launcher the stream is always synchronous.
        order: "source" keeps the order of the data, "arrival" delivers rows as they are finished.
        max_lag: Versions of the weights between the start of a row and its use, at or above 0, with one version a
            batch: a row is begun only if the counts of rows let it be used in time. In source order no row is older; in
            arrival order a long row may be, and `info.lag` says so. None sets no limit.
        stale: "use" rows that are older than `max_lag` nevertheless, or "drop" them, counted.
        on_error: "raise" the error of a stage that raises twice for a row, or "skip" such rows, counted.
        keep: A function of one finished row that returns whether it is kept: others are left out, counted, and more
            rows take their places in the batch. Of a list it gets the item, of anything else a value of one row (such
            as Rollouts of one row). It runs in this process, to which the rows are fetched for it.
        weights_of: One or several components that stages call and whose weights are synced, such as the sampler of an
            agent: `max_lag` counts their versions.

    Raises:
        TypeError: A stage is not callable, or its arguments do not fit.
        ValueError: An option is no whole number or out of range, or a stage cannot run for a part of the rows.
    """
    return Stream(source, stages, Rules(rows, ahead, order, max_lag, stale, on_error), keep, weights_of)
