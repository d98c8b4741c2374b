"""A stream: a loop over what stages make of the rows of a source, ahead of the loop or at its pace."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, cast

from twinkle_remote.failures.frames import driver_line, plain_interrupt
from twinkle_remote.interpreter_end import unless_ending
from twinkle_remote.sessions.current import active
from twinkle_remote.sessions.telemetry.trace import Trace
from twinkle_remote.streams.ahead import AheadEngine, runs_ahead
from twinkle_remote.streams.chunks.spool import Spool
from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.protocols import check_state
from twinkle_remote.streams.rows.batch_info import nothing_to_forget, set_info, warn_of_no_batch
from twinkle_remote.streams.rows.positions import open_to_consumed, unread_position
from twinkle_remote.streams.rows.row_source import RowSource
from twinkle_remote.streams.schedule.counts import StreamCounts
from twinkle_remote.streams.stage_weights import StageWeights
from twinkle_remote.streams.stages import check_chunks, stage_of
from twinkle_remote.streams.synchronous import SynchronousEngine
from twinkle_remote.streams.telemetry.forecast import forecast
from twinkle_remote.streams.telemetry.progress_bar import ProgressBar, shows_progress
from twinkle_remote.streams.telemetry.stage_place import stage_workers
from twinkle_remote.streams.telemetry.stream_record import StreamRecord
from twinkle_remote.streams.telemetry.stream_timeline import add_chunks, add_loop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from types import TracebackType

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.streams.options import StreamOptions
    from twinkle_remote.streams.protocols import StreamState
    from twinkle_remote.streams.ranks.lost_ranks import LostRanks
    from twinkle_remote.streams.rows.rows_info import QuarantinedRow, RowsInfo
    from twinkle_remote.streams.telemetry.stream_stats import StreamStats

R_co = TypeVar("R_co", covariant=True)


class Stream(Generic[R_co]):
    """Iterates over batches of finished rows; `stream` makes one.

    A `for` loop over it is an epoch of the source. It is a context manager; its end abandons rows in work.
    """

    _engine: AheadEngine | SynchronousEngine | None = None  # from the first row to `close`; also if __init__ raises
    _forget: Callable[[], None] = staticmethod(nothing_to_forget)

    def __init__(
        self, source: Iterable[Any], stages: Sequence[Callable[[Any], Any]], **options: Unpack[StreamOptions]
    ) -> None:
        self._line = driver_line()
        spool, self._shows = options.pop("spool", None), options.pop("progress", False) and shows_progress()
        weights_of = options.pop("weights_of", None)
        self._rules = StreamRules(**cast("Any", options))
        self._spool = None if spool is None else Spool(spool)
        self._kept_from = 0  # rows before it are not left in the state that was taken last
        self._functions = tuple(stages)
        self._stages = [stage_of(stage) for stage in stages]
        self._weights = StageWeights(self._stages, weights_of)
        self._source = RowSource(source, copies=bool(self._rules.ahead or self._rules.rows))
        if self._rules.ahead:
            for stage in self._stages:
                check_chunks(stage)
        self._version = 0
        self._consumed: Sequence[tuple[int, int]] = ()
        self._info: RowsInfo | None = None
        self._ended = False  # the epoch is over: the next `for` begins another one
        self._closed = False
        self._final: StreamState | None = None  # of a closed stream
        self._record = self._new_record()
        self._bar: ProgressBar | None = None
        self._last: AheadEngine | SynchronousEngine | None = None  # the one that was left, for its counts
        self._lost: LostRanks | None = None  # of the engine that was left, for the next one
        self._batches = 0  # of this epoch
        self._loaded = 0  # version of the state that was loaded, until the first row after it

    def __iter__(self) -> Stream[R_co]:
        if self._ended:
            self._running().begin_epoch()
            self._ended = False
        return self

    def __next__(self) -> R_co:
        if self._ended:
            raise StopIteration
        engine = self._running()
        self._forget()
        if self._shows and self._bar is None:
            self._bar = ProgressBar(self.stats)
        try:
            with plain_interrupt():
                hand = engine.next_batch()
        except Exception:
            self._over()
            raise
        if hand is None:
            if not self._batches:
                warn_of_no_batch(self.stats(), self._rules.max_lag)
            self._batches = 0
            self._end()
            raise StopIteration
        value, self._info = hand.at_version(engine.version)
        self._forget = set_info(value, self._info)
        if self._bar is not None:
            self._bar.delivered()
        self._batches += 1
        hand.given, hand.made = True, None  # no signal comes after this: until here, `next` gives it again
        return value  # type: ignore[no-any-return]  # a row of any type

    def _end(self) -> None:
        """The epoch is over, or has failed."""
        self._ended = True
        self._over()

    def _over(self) -> None:
        self._record.over()
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    @property
    def info(self) -> RowsInfo | None:
        """Versions, lags and indices of the rows of the latest batch; None before the first."""
        return self._info

    @property
    def version(self) -> int:
        """The current version of the weights: the version that was published last."""
        return self._version if self._engine is None else self._engine.version

    @property
    def set_aside(self) -> Sequence[QuarantinedRow]:
        """The rows for which a stage raised at each attempt; they are not delivered."""
        engine = self._engine or self._last
        return () if engine is None else engine.set_aside

    def publish(self, version: int | None = None) -> int:
        """Publish that the stages have new weights; a WeightSync into a stage's component does so by itself.

        Args:
            version: Number of the version, above the last one; None for the next one.

        Returns:
            The number of the version.

        Raises:
            ValueError: The version is not above the last one.
        """
        return self._publish(version, None)

    def _publish(self, version: int | None, began: float | None) -> int:
        number = self.version + 1 if version is None else version
        if number <= self.version:
            raise ValueError(f"version={version} is not above the last one, {self.version}")
        self._record.publishes(number, began)
        if self._engine is None:
            self._version = number
        else:
            self._engine.publish(number)
        return number

    def add(self, *functions: Callable[[Any], Any]) -> None:
        """Add another component to stages; rows go to the data rank that is least busy.

        A WeightSync into the stage's first component gives the weights to the other component too, until the stream is
        closed. The data ranks of the other component take rows when they have current weights. Without a WeightSync
        they take rows at once.

        Args:
            *functions: Functions of the other component with the names of the stages, such as `more.sample` for
                `sampler.sample`; one for each stage that runs on the same workers.

        Raises:
            ValueError: They are not functions of these stages, the component already works for the stream, or the
                stream is synchronous.
        """
        self._ahead("add").add(functions)
        self._record.places = tuple(stage_workers(self._stages, self._rules.at_once))

    def drain(self, function: Callable[[Any], Any], timeout: float | None = None) -> None:
        """Give a component no more rows, and wait until it has finished its rows.

        If only workers without weights would be left, wait until they have weights. The finished rows of the drained
        component stay on its workers until they are used. Syncs continue without it.

        Args:
            function: Its function that is a stage, such as `more.sample`.
            timeout: Seconds to wait; None for no limit.

        Raises:
            ValueError: It does not work for the stream, no other component would be left, or the stream is synchronous.
            CallTimeoutError: It still works after that time, and gets no more rows; or the workers that joined have no
                weights yet, and it continues.
        """
        self._ahead("drain").drain(function, timeout)

    def _ahead(self, verb: str) -> AheadEngine:
        engine = self._running()
        if not isinstance(engine, AheadEngine):
            raise ValueError(f"{verb} needs workers other than the loop, and this stream is synchronous: use ahead=n")
        return engine

    def runs_on(self, component: Component) -> bool:
        """Whether a stage runs on a component."""
        return self._weights.are_of(component)

    def weights_elsewhere(self, component: Component) -> None:
        """Record that a component without a stage has new weights."""
        if not self.version:
            self._weights.are_elsewhere(component)

    def works_ahead(self) -> bool:
        """Whether stages work while the loop does."""
        return self._engine is not None and self._engine.works_ahead

    def held(self) -> AbstractContextManager[object]:
        """A block in which no row is begun, for a WeightSync that publishes a version."""
        return nullcontext() if self._engine is None else self._engine.held()

    def weights_arrived(self, version: int | None, began: float) -> None:
        """The stages have new weights, by a WeightSync that began then; see `OpenStream`."""
        if version is not None and version <= self.version:
            self._weights.came_late(version, self.version + 1)
            version = None
        self._publish(version, began)

    def stats(self) -> StreamStats:
        """Metrics since the stream was made or a state was loaded; `print` shows them as a table."""
        engine = self._engine or self._last
        return self._record.stats(StreamCounts() if engine is None else engine.counts)

    def explain(
        self,
        durations: Mapping[str, Sequence[float]] | None = None,
        training: float | None = None,
        rows: int | None = None,
    ) -> StreamStats:
        """Predict `stats()` by a simulation of the schedule.

        Given durations are the times of rows on a worker; calls have no other cost. Measured durations are the times
        for which a data rank was busy, with the overhead of its calls. Without measured steps a version follows each
        batch.

        Args:
            durations: For each stage by name, seconds of rows: at least one value, all equally likely; None for the
                times that this stream has measured.
            training: Seconds that the loop works on one row; None for the measured time, 0 before the first step.
            rows: Rows of the simulated run; None for the number of measured rows, or 4,096.

        Raises:
            ValueError: Nothing was measured, or a stage has no durations.
        """
        engine = self._engine or self._last
        rules = self._rules if engine is None or engine.works_ahead else replace(self._rules, ahead=0)
        return forecast(self._record, rules, durations, training, rows)

    def timeline(self, path: str | Path) -> Path:
        """Write the latest chunks, steps and versions as trace events; https://ui.perfetto.dev opens the file.

        Times are by the driver's clock: a time of a worker is used only between sending and receiving.

        Args:
            path: A `.json` file, which is replaced.
        """
        trace = Trace()
        add_loop(trace, self._record)
        add_chunks(trace, self._record)
        return trace.write(path)

    def state_dict(self) -> StreamState:
        """The position: `load_state_dict` needs it to deliver each row once, on any number of ranks.

        You may call it at any moment, also in an `except`. It counts the batches that the loop got. A batch whose
        `next` raised is made again. If an exception left the `with` block, the current batch is made again too. The
        state is JSON-able if the source's own state is.
        """
        if self._engine is None and self._final is not None:
            return self._final
        return self._state()

    def _state(self, *, without_hand: bool = False) -> StreamState:
        engine = self._engine
        if engine is None:
            position = unread_position(self._source, self._consumed)
        else:
            position = engine.position(without_hand=without_hand)
        state = {"stream": 1, **position, "version": self.version, "spool": None}
        if self._spool is not None:
            state["spool"] = self._spool.id
            self._spool.forget_before(self._kept_from)
            self._kept_from = state["open"][0][0] if state["open"] else state["read"]
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; rows that were in work then are made again.

        Raises:
            ValueError: It is not the state of a stream.
        """
        check_state(state)
        if self._closed:
            self._stages[:], self._lost = [stage_of(stage) for stage in self._functions], None
        else:
            self._lost = self._leave_engine(closes=False)
        self._closed, self._final = True, dict(state)  # until all of it is loaded
        self._source.load(state)
        self._consumed = open_to_consumed(state)
        self._version = self._loaded = state["version"]
        if self._spool is not None and state["spool"] is not None:
            self._spool.id = state["spool"]
            self._kept_from = 0
        self._record, self._last, self._info = self._new_record(), None, None
        self._ended, self._closed, self._final = False, False, None

    def close(self) -> None:
        """End the stream; rows in work are abandoned, and a run from an earlier state makes them again."""
        self._close(without_hand=False)

    def _close(self, *, without_hand: bool) -> None:
        if self._engine is not None or self._final is None:
            self._final = self._state(without_hand=without_hand)
        self._closed = True
        self._forget()
        self._leave_engine(closes=True)

    def __enter__(self) -> Stream[R_co]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(without_hand=kind is not None)

    @unless_ending
    def __del__(self) -> None:
        self._forget()
        if self._engine is not None:
            self._engine.close()

    def _running(self) -> AheadEngine | SynchronousEngine:
        if self._closed and self._engine is None:
            raise ValueError("the stream is closed: make another one, and give it the state with load_state_dict")
        if self._engine is None:
            self._version = self._weights.version(self._version, self._loaded)
            self._loaded = 0
            self._engine = self._new_engine()
            runtime = active()
            if runtime is not None:
                runtime.streams.add(self, partial(add_loop, record=self._record, name=f"loop over {self._name()}"))
        return self._engine

    def _new_engine(self) -> AheadEngine | SynchronousEngine:
        if self._rules.ahead and self._stages and runs_ahead(self._rules.ahead):
            return AheadEngine(
                self._source,
                self._stages,
                self._rules,
                self._record,
                line=self._line,
                version=self._version,
                consumed=self._consumed,
                spool=self._spool,
                lost=self._lost,
            )
        return SynchronousEngine(
            self._source, self._stages, self._rules, self._record, version=self._version, consumed=self._consumed
        )

    def _name(self) -> str:
        return self._stages[-1].name if self._stages else "the source"

    def _new_record(self) -> StreamRecord:
        return StreamRecord(stage_workers(self._stages, self._rules.at_once))

    def _leave_engine(self, *, closes: bool) -> LostRanks | None:
        """End the engine; returns its lost workers and those that have joined, unless it is closed."""
        engine, lost = self._engine, self._lost
        if engine is not None:
            self._over()
            lost = engine.leave()
            self._last, self._version, self._lost, self._engine = engine, engine.version, lost, None
        if closes and lost is not None:
            lost.close()
            self._lost = None
        runtime = active()
        if runtime is not None:
            runtime.streams.remove(self)
        return self._lost
