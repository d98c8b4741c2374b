"""What a stream does beside the calls: sources, ends, errors, states."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    NotInitializedError,
    get,
    initialize,
    on,
    remote_class,
    remote_function,
    session,
    stream,
)
from twinkle_remote import shutdown as end_session

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> list[int]:
        return [row + 100 for row in rows]

    @remote_function(dispatch="slice_dp", collect="mean")
    def average(self, rows: list[int]) -> float:
        return sum(rows) / len(rows)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def two(self, rows: list[int], more: int) -> list[int]:
        return rows


@pytest.fixture(params=["local", "threads"])
def maker(request: pytest.FixtureRequest) -> Iterator[Maker]:
    with session(request.param, groups=GROUPS):
        yield on("four", DeviceMesh.from_sizes(dp_size=4)).create(Maker)


@pytest.fixture
def apart() -> Iterator[Maker]:
    with session("threads", groups=GROUPS):
        yield on("four", DeviceMesh.from_sizes(dp_size=4)).create(Maker)


class Rows(list[int]):
    """A batch that tells of its rows."""

    def __init__(self, rows: list[int], epoch: int = 0, fillers: int = 0) -> None:
        super().__init__(rows + [-1] * fillers)
        self.epoch = epoch
        self.indices = [*rows, *([-1] * fillers)]
        self.valid = [True] * len(rows) + [False] * fillers

    def __getitem__(self, key: Any) -> Any:
        return list(self)[key]


@dataclass
class Source:
    """A source of 30 rows with a position; it changes its batch size at will."""

    size: int = 4
    at: int = 0
    loaded: list[Any] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < 30:
            rows = list(range(self.at, min(30, self.at + self.size)))
            self.at += len(rows)
            yield rows
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.loaded.append(state)
        self.at = state["at"]


def rows_of_all(batches: Any) -> list[int]:
    return [row - 100 for batch in batches for row in get(batch)]


@pytest.mark.parametrize("ahead", [0, 7])
def test_fillers_never_enter_a_stage(maker: Maker, ahead: int) -> None:
    source = [Rows([0, 1, 2, 3]), Rows([4, 5], fillers=2)]
    with stream(source, maker.make, ahead=ahead) as batches:
        assert [get(batch) for batch in batches] == [[100, 101, 102, 103], [104, 105]]
        assert batches.info is not None
        assert list(batches.info.indices) == [4, 5]


@pytest.mark.parametrize("ahead", [0, 7])
@pytest.mark.parametrize("rows", [None, 3])
def test_an_error_of_the_source_comes_after_its_rows(maker: Maker, ahead: int, rows: int | None) -> None:
    def source() -> Iterator[list[int]]:
        yield [0, 1, 2, 3]
        yield [4, 5, 6]
        raise OSError("the disk is gone")

    seen: list[int] = []
    with stream(source(), maker.make, ahead=ahead, rows=rows) as batches, pytest.raises(OSError, match="the disk"):
        seen.extend(row for batch in batches for row in rows_of_all([batch]))
    assert seen == list(range(7))


@pytest.mark.parametrize("ahead", [0, 7])
def test_versions_go_on_after_a_resume(maker: Maker, ahead: int) -> None:
    with stream([[1, 2], [3, 4]], maker.make, ahead=ahead) as batches:
        next(batches)
        batches.publish(7)
        state = batches.state_dict()
    with stream([[1, 2], [3, 4]], maker.make, ahead=ahead) as batches:
        batches.load_state_dict(state)
        assert batches.publish() == 8
        next(batches)
        assert batches.info is not None
        assert batches.info.begun == [8, 8]
        with pytest.raises(ValueError, match="version=8"):
            batches.publish(8)


def test_the_state_is_kept_when_the_stream_is_closed(apart: Maker) -> None:
    with stream(Source(), apart.make, rows=5, ahead=20) as batches:
        next(batches)
    state = batches.state_dict()
    assert (state["row"], state["gone"]) == (4, [[4, 5]])
    with pytest.raises(ValueError, match="closed"):
        next(batches)


def test_what_is_not_a_state_is_refused(apart: Maker) -> None:
    with pytest.raises(ValueError, match="state of a stream"):
        stream([[1]], apart.make).load_state_dict({"epoch": 1})


def test_the_end_of_the_session_ends_its_streams() -> None:
    initialize("threads", groups=GROUPS)
    maker = on("four", DeviceMesh.from_sizes(dp_size=4)).create(Maker)
    batches = stream(Source(), maker.make, rows=5, ahead=20)
    assert len(get(next(batches))) == 5
    end_session()
    with pytest.raises(ValueError, match="closed"):
        next(batches)
    with pytest.raises(NotInitializedError):
        maker.make([1])


def test_one_process_is_synchronous_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    import twinkle_remote.streams.stream as module

    module._said.clear()
    with session("local"), caplog.at_level(logging.WARNING):
        maker = Maker()
        for _ in range(2):
            with stream([[1, 2], [3]], maker.make, ahead=8) as batches:
                assert list(batches) == [[101, 102], [103]]
    assert [r.message for r in caplog.records] == ["ahead=8 has no effect in mode 'local': the stream is synchronous"]


def test_stages_that_cannot_take_a_part_of_the_rows_are_refused(apart: Maker) -> None:
    with pytest.raises(ValueError, match="collect='mean'"):
        stream([[1]], apart.average, ahead=4)
    with pytest.raises(TypeError, match="'more'"):
        stream([[1]], apart.two, ahead=4)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(TypeError, match="remote function"):
        stream([[1]], 3)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("ahead", [0, 7])
def test_a_source_without_rows_is_refused(maker: Maker, ahead: int) -> None:
    with stream([1, 2], maker.make, ahead=ahead) as batches, pytest.raises(TypeError, match="yields values with rows"):
        next(batches)


@pytest.mark.parametrize("ahead", [(0, 0), (0, 4), (4, 0), (4, 4)])
def test_a_stream_is_the_source_of_another_one(maker: Maker, ahead: tuple[int, int]) -> None:
    source = [[0, 1, 2], [3], [], [4, 5, 6, 7]]

    def streams() -> tuple[Any, Any]:
        inner = stream(source, maker.make, ahead=ahead[0])
        return inner, stream(inner, maker.make, rows=3, ahead=ahead[1])

    inner, outer = streams()
    with inner, outer:
        seen = list(get(next(outer)))
        assert outer.info is not None and outer.info.indices == [0, 1, 2]
        state = json.loads(json.dumps(outer.state_dict()))
    inner, outer = streams()
    with inner, outer:
        outer.load_state_dict(state)
        assert seen + [row for batch in outer for row in get(batch)] == [row + 200 for row in range(8)]
