"""A stream: a loop over what stages make of the rows of a source, ahead of the loop or at its pace."""

from __future__ import annotations

import logging
import time
from random import Random
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

from twinkle_remote.failures.frames import driver_line
from twinkle_remote.protocol.backend import InProcessBackend
from twinkle_remote.sessions.runtime import active
from twinkle_remote.streams.ahead import AheadEngine
from twinkle_remote.streams.positions import open_to_consumed
from twinkle_remote.streams.protocols import check_state
from twinkle_remote.streams.row_source import RowSource
from twinkle_remote.streams.rules import Order, Stale, StreamRules
from twinkle_remote.streams.schedule.simulation import SimulatedRun, simulate
from twinkle_remote.streams.spool import Spool
from twinkle_remote.streams.stages import RemoteStage, check_chunks, pools_of, stage_of
from twinkle_remote.streams.synchronous import SynchronousEngine
from twinkle_remote.streams.told import RowsInfo, SetAside, StreamStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from os import PathLike
    from types import TracebackType

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.streams.protocols import StreamState

T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
R_co = TypeVar("R_co", covariant=True)
_log = logging.getLogger("twinkle.remote")
_said: set[str] = set()


class StreamOptions(TypedDict, total=False):
    """The options of `stream`."""

    rows: int | None
    ahead: int
    order: Order
    max_lag: int | None
    stale: Stale
    chunk: int
    at_once: int
    spool: str | PathLike[str] | None


@overload
def stream(source: Iterable[T], /, **options: Unpack[StreamOptions]) -> Stream[T]: ...
@overload
def stream(source: Iterable[T], stage: Callable[[T], A], /, **options: Unpack[StreamOptions]) -> Stream[A]: ...
@overload
def stream(
    source: Iterable[T], first: Callable[[T], A], second: Callable[[A], B], /, **options: Unpack[StreamOptions]
) -> Stream[B]: ...
@overload
def stream(
    source: Iterable[Any], /, *stages: Callable[[Any], Any], **options: Unpack[StreamOptions]
) -> Stream[Any]: ...
def stream(source: Iterable[Any], /, *stages: Callable[[Any], Any], **options: Unpack[StreamOptions]) -> Stream[Any]:
    """Iterate over what stages make of the rows of a source.

    A row is one sample of the source and what each stage makes of it, such as a prompt with its group of answers.

    Args:
        source: A DataLoader, or any iterable of values with rows; each iteration over it is an epoch.
        *stages: Bound remote functions, or functions of one value; rows go through them one after the other. A stage
            returns one row for each row that it is given.
        **options:
            rows: Rows of a batch; None keeps the batches of the source.
            ahead: Rows that are at work or finished beyond those that the loop uses. 0 is the synchronous loop: the
                same calls in the same order. In one process and under a launcher the stream is always synchronous.
            order: "source" keeps the order of the data, "arrival" delivers what is finished.
            max_lag: Versions of the weights between a row's begin and its use, at or above 0. It paces the begin of
                rows by counts of rows, as AReaL does. None sets no bound.
            stale: What becomes of a row that is older than `max_lag` all the same: "use" it; "wait": batches wait for
                old rows, so that none is older; "redo" it once; "drop" it. What is made again or dropped is counted.
            chunk: Rows of one call with ahead=n.
            at_once: Calls on each data rank at a time with ahead=n.
            spool: A folder that all workers can write to: finished rows are kept there with ahead=n, so that a resume
                does not make them again.

    Raises:
        TypeError: A stage is not callable, or an option is not of its type.
        ValueError: An option is out of range, or a stage cannot run for a part of the rows.
    """
    return Stream(source, stages, **options)


class Stream(Generic[R_co]):
    """Iterates over batches of finished rows; `stream` makes one.

    A `for` loop over it is an epoch of the source. It is a context manager; its end abandons what is at work.
    """

    _engine: AheadEngine | SynchronousEngine | None = None  # also if the constructor raises

    def __init__(
        self, source: Iterable[Any], stages: Sequence[Callable[[Any], Any]], **options: Unpack[StreamOptions]
    ) -> None:
        self._line = driver_line()
        spool = options.pop("spool", None)
        self._rules = StreamRules(**cast("Any", options))
        self._spool = None if spool is None else Spool(spool)
        self._kept_from = 0  # rows before it are not left in the state that was taken last
        self._stages = [stage_of(stage) for stage in stages]
        self._source = RowSource(source)
        if self._rules.ahead:
            for stage in self._stages:
                check_chunks(stage)
        self._version = 0
        self._consumed: Sequence[tuple[int, int]] = ()
        self._info: RowsInfo | None = None
        self._ended = False
        self._closed = False
        self._final: StreamState | None = None
        self._began: float | None = None
        self._waited = 0.0
        self._last: AheadEngine | SynchronousEngine | None = None
        self._until: float | None = None

    def __iter__(self) -> Stream[R_co]:
        if self._ended:
            self._ended = False
            self._running().begin_epoch()
        return self

    def __next__(self) -> R_co:
        if self._ended:
            raise StopIteration
        engine = self._running()
        began = time.perf_counter()
        if self._began is None:
            self._began = began
        try:
            made = engine.next_batch()
        except Exception:
            self._ended = True
            raise
        finally:
            self._waited += time.perf_counter() - began
        if made is None:
            self._ended = True
            raise StopIteration
        value, self._info = made
        return value  # type: ignore[no-any-return]

    @property
    def info(self) -> RowsInfo | None:
        """Versions, lags and indices of the rows of the latest batch; None before the first."""
        return self._info

    @property
    def version(self) -> int:
        """The version of the weights now: what was published last."""
        return self._version if self._engine is None else self._engine.version

    @property
    def set_aside(self) -> Sequence[SetAside]:
        """The rows for which a stage raised at each attempt; they are not delivered."""
        engine = self._engine or self._last
        return engine.set_aside if isinstance(engine, AheadEngine) else ()

    def publish(self, version: int | None = None) -> int:
        """Tell that the stages have new weights; a WeightSync into a stage's component tells it by itself.

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
        if self._engine is None:
            self._version = number
        else:
            self._engine.publish(number)
        return number

    def weights_arrived(self, component: Component) -> None:
        """A component has new weights; a version is published if a stage runs on it."""
        own = [stage.component for stage in self._stages if isinstance(stage, RemoteStage)]
        if any((mine.group, mine.instance) == (component.group, component.instance) for mine in own):
            self.publish()

    def stats(self) -> StreamStats:
        """Figures since the stream was made."""
        until = time.perf_counter() if self._until is None else self._until
        seconds = 0.0 if self._began is None else until - self._began
        waiting = self._waited / seconds if seconds else 0.0
        engine = self._engine or self._last
        if not isinstance(engine, AheadEngine):
            rows = 0 if engine is None else engine.delivered
            return StreamStats(rows, rows / seconds if seconds else 0.0, waiting=waiting)
        counts = engine.schedule.counts
        busy = {
            stage.name: done / (seconds * stage.data_ranks) if seconds else 0.0
            for stage, done in zip(self._stages, engine.busy_seconds, strict=True)
        }
        return StreamStats(
            counts.delivered,
            counts.delivered / seconds if seconds else 0.0,
            busy,
            waiting,
            counts.lag.copy(),
            counts.worst_lag,
            counts.redone,
            counts.dropped,
            counts.set_aside,
        )

    def explain(
        self,
        durations: Mapping[str, Sequence[float]] | None = None,
        training: float | None = None,
        rows: int = 4096,
    ) -> SimulatedRun:
        """Predict throughput, lag and waste by a simulation of the schedule.

        It assumes a version after each batch, and no cost of the calls.

        Args:
            durations: For each stage by name, seconds that rows took: at least one, each as likely as the others; None
                for what this stream has measured.
            training: Seconds that the loop works on one row; None for what was measured.
            rows: Rows of the simulated run.

        Raises:
            ValueError: Nothing was measured, or a stage has no durations.
        """
        engine = self._engine or self._last
        ahead = engine if isinstance(engine, AheadEngine) else None
        if durations is None:
            measured = [] if ahead is None else ahead.row_seconds
            durations = {stage.name: list(seconds) for stage, seconds in zip(self._stages, measured, strict=False)}
        if training is None:
            stats = self.stats()
            training = (1.0 - stats.waiting) / stats.rows_per_second if stats.rows_per_second else 0.0
        missing = [stage.name for stage in self._stages if not durations.get(stage.name)]
        if missing:
            raise ValueError(f"no durations of {', '.join(missing)}: give explain(durations={{name: seconds}})")
        choose = Random(0)
        drawn = [[choose.choice(durations[stage.name]) for _ in range(rows)] for stage in self._stages]
        pools, of_stage = pools_of(self._stages)
        return simulate(self._rules, pools, of_stage, lambda row, stage: drawn[stage][row], training, rows)

    def state_dict(self) -> StreamState:
        """The position: what `load_state_dict` needs to deliver each row once, on any number of ranks.

        It counts batches that the loop was given. It is JSON-able where the source's own state is.
        """
        if self._engine is None and self._final is not None:
            return self._final
        engine = self._running()
        state = {"stream": 1, **engine.position(), "version": engine.version, "spool": None}
        if self._spool is not None:
            state["spool"] = self._spool.id
            self._spool.forget_before(self._kept_from)
            self._kept_from = state["open"][0][0] if state["open"] else state["read"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; rows that were at work then are made again.

        Raises:
            ValueError: It is not the state of a stream.
        """
        check_state(state)
        self._leave_engine()
        self._source.load(state)
        self._consumed = open_to_consumed(state)
        self._version = state["version"]
        if self._spool is not None and state["spool"] is not None:
            self._spool.id = state["spool"]
            self._kept_from = 0
        self._info = self._final = None
        self._ended = self._closed = False

    def close(self) -> None:
        """End the stream; rows at work are abandoned, and a state that was taken before makes them again."""
        self._closed = True
        if self._engine is not None:
            self._final = self.state_dict()
        self._leave_engine()

    def __enter__(self) -> Stream[R_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _running(self) -> AheadEngine | SynchronousEngine:
        if self._closed and self._engine is None:
            raise ValueError("the stream is closed: make another one, and give it the state with load_state_dict")
        if self._engine is None:
            self._engine, self._until = self._new_engine(), None
            runtime = active()
            if runtime is not None:
                runtime.streams.add(self)
        return self._engine

    def _new_engine(self) -> AheadEngine | SynchronousEngine:
        if self._rules.ahead and self._stages and self._runs_apart():
            return AheadEngine(
                self._source,
                self._stages,
                self._rules,
                line=self._line,
                version=self._version,
                consumed=self._consumed,
                spool=self._spool,
            )
        return SynchronousEngine(
            self._source, self._stages, self._rules.rows, version=self._version, consumed=self._consumed
        )

    def _runs_apart(self) -> bool:
        """Whether stages run beside the loop; says once that they do not."""
        runtime = active()
        if runtime is not None and runtime.whole is None and not isinstance(runtime.backend, InProcessBackend):
            return True
        if "synchronous" not in _said:
            _said.add("synchronous")
            mode = "without a session" if runtime is None else f"in mode {runtime.mode!r}"
            _log.warning("ahead=%d has no effect %s: the stream is synchronous", self._rules.ahead, mode)
        return False

    def _leave_engine(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            self._last = engine
            self._until = time.perf_counter()
            self._version = engine.version
            engine.close()
        runtime = active()
        if runtime is not None:
            runtime.streams.remove(self)
