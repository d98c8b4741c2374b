"""Random programs of a stream beside a reference of a page: each row is delivered once, in order, within its lag.

`TWINKLE_STREAM_PROGRAMS=3000 pytest tests/remote/streams/test_stream_programs.py` runs as many in each mode.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from tests.remote.streams.column_stages import Columns, column, column_stages

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, release, remote_class, remote_function, session, stream, take
from twinkle_remote.context import current_worker
from twinkle_remote.protocol.backend import Memory
from twinkle_remote.streams import recovery
from twinkle_remote.streams import stream as stream_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

PROGRAMS = int(os.environ.get("TWINKLE_STREAM_PROGRAMS", "100"))
FIRST = int(os.environ.get("TWINKLE_STREAM_FIRST", "0"))
GROUPS = [DeviceGroup("first", 2, "CPU"), DeviceGroup("second", 2, "CPU")]
_INTERRUPTED = ("stream", "ahead", "synchronous", "source")
_WHERE = tuple(os.path.join(os.path.dirname(stream_module.__file__), f"{name}.py") for name in _INTERRUPTED)

poison: dict[int, int] = {}  # rows for which a stage raises, and how often it still does
lost = {"share": 0.0, "calls": 0}  # calls after which a worker counts as started again, with all that it made lost
_lock = threading.Lock()
_meetings: dict[str, threading.Barrier] = {}


def _make(rows: list[int]) -> list[int]:
    for row in rows:
        with _lock:
            left = poison.get(row, 0)
            poison[row] = left - 1
        if left > 0:
            raise ArithmeticError(f"row {row}")
    return list(rows)


@remote_class()
class Maker:
    def __init__(self, name: str) -> None:
        self.name = name

    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        return _make(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def begin(self, rows: list[int]) -> list[int]:
        return _make(rows)

    @remote_function(dispatch="slice_dp", collect="flatten", collective=True)
    def together(self, rows: list[int]) -> list[int]:
        if current_worker().group is not None and self.name in _meetings:
            _meetings[self.name].wait(20)
        return list(rows)


@remote_class()
class Checker(Maker, Columns):
    """Works for the second stage and those after it."""

    def __init__(self, name: str) -> None:
        Maker.__init__(self, name)
        Columns.__init__(self, _make)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def peek(self, rows: Any) -> list[int]:
        return column(rows, "row")


class Resumable:
    """A source that knows its position."""

    def __init__(self, batches: list[list[int]]) -> None:
        self.batches = batches
        self.at = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < len(self.batches):
            self.at += 1
            yield list(self.batches[self.at - 1])
        self.at = 0

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


@dataclass
class Reference:
    """What the loop was given in this epoch; a state keeps a copy of it."""

    rows: int
    in_order: bool
    delivered: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)  # the latest batch

    def take(self, rows: list[int], optional: set[int]) -> None:
        whole = not set(range(self.rows)) - set(self.delivered) - optional
        if whole and not set(rows).isdisjoint(self.delivered):  # a state with all rows may not keep that the end came
            self.delivered = []
        assert rows, "an empty batch"
        self.before = list(self.delivered)
        assert set(rows).isdisjoint(self.delivered), f"{rows} once more after {self.delivered}"
        if self.in_order:
            before = [row for row in range(rows[-1]) if row not in optional]
            assert [row for row in [*self.delivered, *rows] if row not in optional][: len(before)] == before
        self.delivered += rows

    def end(self, optional: set[int]) -> None:
        missing = set(range(self.rows)) - set(self.delivered) - optional
        assert not missing, f"{sorted(missing)} are lost"
        self.delivered = []


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line that this thread runs in the engines of streams."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def __enter__(self) -> None:
        sys.settrace(self._trace)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in _WHERE or _is_collected(frame):
            return None
        is_given = frame.f_code.co_name == "__next__" and "value" in frame.f_locals
        if event == "line" and not is_given:  # no signal comes between that and the return
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def _is_collected(frame: FrameType | None) -> bool:
    """Whether a frame runs for an object that is collected: Python raises nothing from there."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


class Program:
    """A random program: a stream, and steps of a loop over it."""

    def __init__(self, seed: int, mode: str) -> None:
        self.random = choose = Random(f"{mode} {seed}")
        self.mode = mode
        sizes = [choose.randint(0, 5) for _ in range(choose.randint(1, 7))]
        starts = [sum(sizes[:index]) for index in range(len(sizes))]
        self.batches = [list(range(start, start + size)) for start, size in zip(starts, sizes, strict=True)]
        self.rows = sum(sizes)
        self.resumable = choose.random() < 0.5
        self.options: dict[str, Any] = {"order": choose.choice(["source", "arrival"])}
        if choose.random() < 0.7:
            self.options["rows"] = choose.randint(1, 5)
        if choose.random() < 0.75:
            self.options["ahead"] = choose.randint(1, 12)
        if choose.random() < 0.5:
            self.options |= {"max_lag": choose.randint(0, 2), "stale": choose.choice(["use", "use", "drop"])}
        if choose.random() < 0.3:
            self.options["on_error"] = "skip"
        self.refuses = choose.choice([2, 3, 7]) if choose.random() < 0.3 else None
        self.ahead = mode == "threads" and "ahead" in self.options
        lost["share"] = choose.choice([0.0, 0.0, 0.05, 0.2])
        name = f"{mode}-{seed}"
        if mode == "threads":
            _meetings[name] = threading.Barrier(2)
        mesh = DeviceMesh.from_sizes(dp_size=2)
        self.maker = on("first", mesh).create(Maker, name)
        self.second = on("second", mesh).create(Checker, f"{name}-second")
        stages: list[Any] = [getattr(self.maker, choose.choice(["make", "begin", "together"]))]
        if choose.random() < 0.5:
            stages.append(choose.choice([self.second.make, self.second.together, lambda rows: get(rows)]))
        self.columns = None
        if choose.random() < 0.5:
            more, self.columns = column_stages(choose, self.second)
            stages += more
        if self.refuses:
            self.options["keep"] = self.keeps
        self.stages = stages
        self.optional: set[int] = set()  # rows that may be left out
        if self.options.get("stale") == "drop" or self.refuses:
            every = range(self.rows)
            self.optional.update(row for row in every if not self.refuses or not row % self.refuses)
        if self.options.get("stale") == "drop":
            self.optional.update(range(self.rows))
        poison.clear()
        self.reference = Reference(self.rows, self.options["order"] == "source")
        self.states: list[tuple[Any, list[int]]] = []
        self.kept: list[tuple[Any, list[int]]] = []  # batches that the loop reads once more
        self.published = False  # since the latest batch
        self.fair = True  # no version came but one after a batch, so that the bound of lag holds
        self.stream = self.fresh()

    def keeps(self, row: Any) -> bool:
        (number,) = [row] if self.columns is None else self.rows_of(row)
        return bool(self.refuses and number % self.refuses)

    def fresh(self) -> Any:
        source: Any = Resumable(self.batches) if self.resumable else [list(batch) for batch in self.batches]
        return stream(source, *self.stages, **self.options)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.moves())()
        self.finish()
        self.stream.close()

    def moves(self) -> list[Callable[[], Any]]:
        ask: Callable[[], Any] = self.next
        often = [ask, ask, ask, self.state, self.load, self.interrupted, self.publish, self.poisoned]
        return [*often, self.read_again, self.reopened, self.left_by_an_error]

    def finish(self) -> None:
        poison.clear()
        for _ in range(3 * self.rows + 10):
            if self.next():
                return
        raise AssertionError("the epoch does not end")

    def next(self, interrupt: int = 0) -> bool | None:
        """Ask for a batch; None if there is one, True if the epoch is over, False if it failed."""
        try:
            if interrupt:
                with Interrupt(interrupt):
                    batch = next(self.stream)
            else:
                batch = next(self.stream)
        except StopIteration:
            self.reference.end(self.optional)
            iter(self.stream)
            return True
        except KeyboardInterrupt:
            return False
        except ArithmeticError:
            assert "on_error" not in self.options
            poison.clear()
            if self.ahead:
                self.reload()
            return False
        rows, info = self.rows_of(get(batch)), self.stream.info
        self.kept.append((batch, rows))
        assert not (self.refuses and any(row % self.refuses == 0 for row in rows))
        self.reference.take(rows, self.optional)
        assert info.indices == rows
        assert info.lag == [self.stream.version - begun for begun in info.begun]
        bound = self.options.get("max_lag")
        if bound is not None and (self.options["stale"] == "drop" or (self.fair and self.reference.in_order)):
            assert max(info.lag) <= bound
        self.published = False
        return None

    def rows_of(self, value: Any) -> list[int]:
        """The rows of a batch, each of whose columns has to be that of its row."""
        if self.columns is None:
            return list(value)
        rows = column(value, "row")
        assert {name: column(value, name) for name in value} == self.columns(rows)
        return rows

    def read_again(self) -> None:
        """Read an older batch, whole or some of its rows, in this process or on workers."""
        if self.kept:
            batch, rows = self.random.choice(self.kept)
            order = self.random.choices(range(len(rows)), k=self.random.randint(1, 4))
            assert self.rows_of(get(take(batch, order))) == [rows[one] for one in order]
            if self.columns is not None:
                assert list(get(self.second.peek(take(batch, order)))) == [rows[one] for one in order]
            assert self.rows_of(get(batch)) == rows

    def interrupted(self) -> None:
        self.next(self.random.randint(1, 250))

    def state(self) -> None:
        state = json.loads(json.dumps(self.stream.state_dict()))
        self.states.append((state, list(self.reference.delivered)))

    def load(self) -> None:
        if not self.states:
            return
        state, delivered = self.random.choice(self.states[-3:])
        self.stream.load_state_dict(state)
        self.reference.delivered = list(delivered)
        self.fair = True

    def reload(self) -> None:
        self.stream.load_state_dict(self.stream.state_dict())
        self.fair = True

    def reopened(self) -> None:
        """The program ends, and another one goes on from its last state."""
        self.stream.close()
        state = self.stream.state_dict()
        if self.random.random() < 0.5:
            self.stream = self.fresh()
        self.stream.load_state_dict(state)
        self.fair = True

    def left_by_an_error(self) -> None:
        """The loop fails with the batch that it has, which is made again."""
        if self.next() is None:
            self.reference.delivered = self.reference.before
        with pytest.raises(ZeroDivisionError), self.stream:
            raise ZeroDivisionError
        self.reload()

    def publish(self) -> None:
        versions = self.random.choice([1, 1, 1, 2, 3])
        self.fair &= versions == 1 and not self.published
        self.published = True
        for _ in range(versions):
            self.stream.publish()

    def poisoned(self) -> None:
        if not self.rows or (self.mode == "threads" and not self.ahead):  # a lazy result fails where it is used
            return
        row, often = self.random.randrange(self.rows), self.random.choice([1, 1, 100])
        if "on_error" in self.options:
            self.optional.add(row)
        with _lock:
            poison[row] = often


@pytest.fixture
def _workers_are_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have workers of threads, which cannot die, count as started again at random calls."""
    draw = Random(0)

    def was_replaced(*_: object) -> bool:
        found = draw.random() < lost["share"]
        lost["calls"] += found
        return found

    monkeypatch.setattr(recovery.Recovery, "was_replaced", was_replaced)
    monkeypatch.setattr(recovery, "_FIRST_SECONDS", 0.001)
    monkeypatch.setattr(Memory, "outlives_worker", lambda *_: not lost["share"])


@pytest.mark.usefixtures("_workers_are_lost")
@pytest.mark.parametrize("mode", ["local", "threads"])
def test_each_row_once_in_random_programs(mode: str) -> None:
    failures, components = [], []
    with session(mode, groups=GROUPS):
        for seed in range(FIRST, FIRST + PROGRAMS):
            try:
                program = Program(seed, mode)
                components += [program.maker, program.second]
                program.run(Random(seed).randint(3, 14))
            except Exception as error:
                if PROGRAMS <= 100:
                    raise AssertionError(f"program {seed} in mode {mode}") from error
                failures.append(f"{seed}: {type(error).__name__}: {str(error)[:100]}")
        for component in components[-200:]:  # a release looks for garbage in the whole process
            release(component)
    assert not failures, f"{len(failures)} of {PROGRAMS}: {failures[:5]}"
    assert mode == "local" or lost["calls"]


def test_what_a_loop_has_is_delivered_where_it_ends_without_an_error() -> None:
    with session("threads", groups=GROUPS):
        make = partial(stream, [[0, 1], [2, 3]], on("first").create(Maker, "m").make, ahead=4)
        with make() as batches:
            assert list(get(next(batches))) == [0, 1]
        with make() as more:
            more.load_state_dict(batches.state_dict())
            assert [list(get(batch)) for batch in more] == [[2, 3]]
