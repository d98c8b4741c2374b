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
from twinkle_remote import get, on, remote_class, remote_function, session, stream, take
from twinkle_remote.backends.serving import release_all
from twinkle_remote.context import current_worker
from twinkle_remote.streams import stream as stream_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from types import FrameType

PROGRAMS = int(os.environ.get("TWINKLE_STREAM_PROGRAMS", "20"))
FIRST = int(os.environ.get("TWINKLE_STREAM_FIRST", "0"))
GROUPS = [DeviceGroup("first", 2, "CPU"), DeviceGroup("more", 2, "CPU"), DeviceGroup("second", 2, "CPU")]
_INTERRUPTED = (
    "stream",
    "ahead",
    "synchronous",
    "row_source",
    "positions",
    "hand",
)  # without locks: a line is no signal
_WHERE = tuple(os.path.join(os.path.dirname(stream_module.__file__), f"{name}.py") for name in _INTERRUPTED)

poison: dict[int, int] = {}  # rows for which a stage raises, and how often it still does
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
    """Works for the second stage and those after it, which nobody joins."""

    def __init__(self, name: str) -> None:
        Maker.__init__(self, name)
        Columns.__init__(self, _make)

    @remote_function(dispatch="slice_dp", collect="flatten", reads="row")
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
        if frame.f_code.co_filename not in _WHERE:
            return None
        hand = frame.f_locals.get("hand") if frame.f_code.co_name == "__next__" else None
        if event == "line" and not (hand is not None and hand.given):  # no signal comes between that and the return
            self.left -= 1
            if self.left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


class Program:
    """A random program: a stream, and steps of a loop over it."""

    def __init__(self, seed: int, mode: str, folder: Path | None = None) -> None:
        self.folder = folder
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
            self.options |= {"ahead": choose.randint(1, 12), "chunk": choose.choice([None, None, 1, 2, 3])}
            self.options["at_once"] = choose.choice([None, 1, 2])
        if choose.random() < 0.5:
            self.options |= {"max_lag": choose.randint(0, 2), "stale": choose.choice(["use", "wait", "redo"])}
        self.ahead = mode == "threads" and "ahead" in self.options
        name = f"{mode}-{seed}"
        if mode == "threads":
            _meetings.update({name: threading.Barrier(2), f"{name}-more": threading.Barrier(2)})
        mesh = DeviceMesh.from_sizes(dp_size=2)
        self.makers = [on(group, mesh).create(Maker, n) for group, n in (("first", name), ("more", f"{name}-more"))]
        self.second = on("second", mesh).create(Checker, f"{name}-second")
        self.kind = choose.choice(["make", "begin", "together"])
        stages: list[Any] = [getattr(self.makers[0], self.kind)]
        if choose.random() < 0.5:
            stages.append(choose.choice([self.second.make, self.second.together, lambda rows: get(rows)]))
        self.columns = None
        if choose.random() < 0.5:
            more, self.columns = column_stages(choose, self.second)
            stages += more
        if self.folder is not None and choose.random() < 0.3:
            self.options["spool"] = self.folder
        self.stages = stages
        self.optional: set[int] = set()
        self.poisoned_ever: set[int] = set()
        poison.clear()
        self.reference = Reference(self.rows, self.options["order"] == "source")
        self.states: list[tuple[Any, list[int]]] = []
        self.kept: list[tuple[Any, list[int]]] = []  # batches that the loop reads once more
        self.joined = self.drained = False
        self.in_body = True  # the loop is not in the middle of asking
        self.from_outside = False  # versions came while it was: these may put rows beyond the bound
        self.stream = self.fresh()

    def fresh(self) -> Any:
        source: Any = Resumable(self.batches) if self.resumable else [list(batch) for batch in self.batches]
        self.joined = self.drained = False
        return stream(source, *self.stages, **self.options)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.random.choice(self.moves())()
        self.finish()
        self.stream.close()

    def moves(self) -> list[Callable[[], Any]]:
        ask: Callable[[], Any] = self.next
        often = [ask, ask, ask, self.state, self.load, self.interrupted, self.publish, self.poisoned]
        return [*often, self.read_again, self.reopened, self.left_by_an_error, self.add, self.drain]

    def finish(self) -> None:
        poison.clear()
        for _ in range(3 * self.rows + 10):
            if self.next():
                return
        raise AssertionError("the epoch does not end")

    def next(self, interrupt: int = 0) -> bool | None:
        """Ask for a batch; None if there is one, True if the epoch is over, False if it failed."""
        found = self._next(interrupt)
        self.in_body = found is not False
        self.note_aside()
        return found

    def note_aside(self) -> None:
        """A row that fails beside another one and then alone has failed at each attempt."""
        self.optional |= {row.index for row in self.stream.set_aside} & self.poisoned_ever

    def _next(self, interrupt: int) -> bool | None:
        try:
            if interrupt:
                with Interrupt(interrupt):
                    batch = next(self.stream)
            else:
                batch = next(self.stream)
        except StopIteration:
            self.note_aside()
            self.reference.end(self.optional)
            iter(self.stream)
            return True
        except KeyboardInterrupt:
            return False
        except ArithmeticError:
            poison.clear()
            if self.ahead:
                self.reload()
            return False
        rows, info = self.rows_of(get(batch)), self.stream.info
        self.kept.append((batch, rows))
        self.note_aside()
        self.reference.take(rows, self.optional)
        assert info.indices == rows
        assert info.lag == [self.stream.version - begun for begun in info.begun]
        bound = self.options.get("max_lag")
        if bound is not None and self.options["stale"] == "wait" and not self.from_outside:
            assert max(info.lag) <= bound
        return None

    def rows_of(self, value: Any) -> list[int]:
        """The rows of a batch, each of whose columns has to be that of its row."""
        if self.columns is None:
            return list(value)
        rows = column(value, "row")
        expected = self.columns(rows)
        found = (
            value if isinstance(value, dict) else {name: one for name, one in vars(value).items() if one is not None}
        )
        assert set(found) == expected.keys(), (set(found), expected.keys())
        assert {name: column(value, name) for name in found} == expected
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
        self.note_aside()
        state, delivered = self.random.choice(self.states[-3:])
        self.stream.load_state_dict(state)
        self.reference.delivered = list(delivered)
        self.in_body = True
        self.from_outside = False

    def reload(self) -> None:
        self.note_aside()
        self.stream.load_state_dict(self.stream.state_dict())
        self.in_body = True
        self.from_outside = False

    def reopened(self) -> None:
        """The program ends, and another one goes on from its last state."""
        self.stream.close()
        self.note_aside()
        state = self.stream.state_dict()
        if self.random.random() < 0.5:
            self.stream = self.fresh()
        self.joined = self.drained = False
        self.stream.load_state_dict(state)
        self.in_body = True
        self.from_outside = False

    def left_by_an_error(self) -> None:
        """The loop fails with the batch that it has, which is made again."""
        if self.next() is None:
            self.reference.delivered = self.reference.before
        with pytest.raises(ZeroDivisionError), self.stream:
            raise ZeroDivisionError
        self.joined = self.drained = False
        self.stream.load_state_dict(self.stream.state_dict())
        self.in_body = True
        self.from_outside = False

    def publish(self) -> None:
        self.from_outside |= not self.in_body
        for _ in range(self.random.choice([1, 1, 1, 2, 3])):
            self.stream.publish()

    def poisoned(self) -> None:
        if not self.rows or (self.mode == "threads" and not self.ahead):  # a lazy result fails where it is used
            return
        row, often = self.random.randrange(self.rows), self.random.choice([1, 1, 100])
        if often > 1 and not self.ahead:
            often = 1
        if often > 1:
            self.optional.add(row)
        self.poisoned_ever.add(row)
        with _lock:
            poison[row] = often

    def add(self) -> None:
        if self.ahead and not self.joined:
            self.stream.add(getattr(self.makers[1], self.kind))
            self.joined = True

    def drain(self) -> None:
        if self.joined and not self.drained:
            self.stream.drain(self.stages[0], timeout=20)
            self.drained = True


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_each_row_once_in_random_programs(mode: str, tmp_path: Path) -> None:
    failures, components = [], []
    with session(mode, groups=GROUPS):
        for seed in range(FIRST, FIRST + PROGRAMS):
            try:
                program = Program(seed, mode, tmp_path / str(seed))
                components += [*program.makers, program.second]
                program.run(Random(seed).randint(3, 14))
            except Exception as error:
                if PROGRAMS < 100:
                    raise AssertionError(f"program {seed} in mode {mode}") from error
                failures.append(f"{seed}: {type(error).__name__}: {str(error)[:100]}")
        assert not release_all(components)  # at once, because a release looks for garbage in the whole process
    assert not failures, f"{len(failures)} of {PROGRAMS}: {failures[:5]}"


def test_what_a_loop_has_is_delivered_where_it_ends_without_an_error() -> None:
    with session("threads", groups=GROUPS):
        make = partial(stream, [[0, 1], [2, 3]], on("first").create(Maker, "m").make, ahead=4)
        with make() as batches:
            assert list(get(next(batches))) == [0, 1]
        with make() as more:
            more.load_state_dict(batches.state_dict())
            assert [list(get(batch)) for batch in more] == [[2, 3]]
