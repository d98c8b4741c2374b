"""Pieces of results: what has none, what is refused, deadlines, and what a session is told of failures."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import CallTimeoutError, as_completed, on, remote_class, remote_function, session, submit

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


@remote_class()
class Maker:
    def __init__(self) -> None:
        self.go = threading.Event()

    @remote_function(dispatch="slice_dp", collect="flatten", uneven="pad")
    def padded(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten", timeout=0.5)
    def late(self, rows: list[int]) -> list[int]:
        if rows == [3, 4]:
            self.go.wait(5.0)
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def failing(self, rows: list[int]) -> list[int]:
        if twinkle.current_worker().rank == 1:  # the second one of the first data rank
            raise KeyError("tensor parallel peer")
        return rows

    @remote_function(collect="first")
    def one(self) -> int:
        return 1


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_the_piece_of_a_late_data_rank_raises_at_the_deadline() -> None:
    maker = on("four", MESH).create(Maker)
    first, second = as_completed(submit(maker.late, [1, 2, 3, 4]))
    assert (first.data_rank, twinkle.get(first)) == (0, [1, 2])
    assert second.data_rank == 1
    with pytest.raises(CallTimeoutError, match=r"Maker\.late on four\[4\] .*0\.5 s"):
        twinkle.get(second)


@pytest.mark.usefixtures("threads")
def test_a_failure_of_a_peer_is_that_of_its_data_rank() -> None:
    maker = on("four", MESH).create(Maker)
    pieces = {piece.data_rank: piece for piece in as_completed(submit(maker.failing, [1, 2, 3, 4]))}
    assert twinkle.get(pieces[1]) == [3, 4]
    with pytest.raises(KeyError, match=r"Maker.failing failed on four\[1/4 dp=0 tp=1\]"):
        twinkle.get(pieces[0])


def test_a_failure_that_is_seen_on_a_piece_does_not_end_the_session() -> None:
    with session("threads", groups=[DeviceGroup("four", 4, "CPU")]):
        maker = on("four", MESH).create(Maker)
        lazy = submit(maker.failing, [1, 2, 3, 4])
        failed = next(piece for piece in as_completed(lazy) if piece.data_rank == 0)
        with pytest.raises(KeyError):
            twinkle.get(failed)
    with pytest.raises(KeyError, match=r"Maker\.failing"):
        pieces_without_use()


def pieces_without_use() -> None:
    with session("threads", groups=[DeviceGroup("four", 4, "CPU")]):
        maker = on("four", MESH).create(Maker)
        assert len(list(as_completed(submit(maker.failing, [1, 2, 3, 4])))) == 2


@pytest.mark.usefixtures("threads")
def test_padded_results_have_no_pieces() -> None:
    maker = on("four", MESH).create(Maker)
    with pytest.raises(ValueError, match=r'Maker.padded says uneven="pad".* use get\(lazy\)'):
        as_completed(submit(maker.padded, [1, 2, 3]))


@pytest.mark.usefixtures("threads")
def test_one_result_and_a_plain_value_are_one_piece() -> None:
    maker = on("one").create(Maker)
    assert [(piece.data_rank, piece.result()) for piece in as_completed(submit(maker.one))] == [(0, 1)]
    plain: Any = 5
    assert list(as_completed(plain)) == [5]


@pytest.mark.usefixtures("threads")
def test_other_results_show_the_data_rank_of_their_value() -> None:
    maker = on("one").create(Maker)
    with pytest.raises(AttributeError, match="data_rank"):
        _ = submit(maker.one).data_rank
