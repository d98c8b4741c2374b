"""A producer that is lost ends the calls that were to be given its result, and their workers are free."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, cast

import pytest
import ray

import twinkle_remote as twinkle
from twinkle_ray.objects.wire import outcome_from_wire
from twinkle_ray.replies.waiting_inputs import WaitingInputs
from twinkle_remote.backends.support import call_of
from twinkle_remote.call.tables.handed_value import read_piece
from twinkle_remote.protocol import HandedShare, HandOver, HandOverPlan, InputReplies
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.backends.support import PendingCall
    from twinkle_remote.protocol import Reply

pytestmark = pytest.mark.ray

INPUTS = 40


@twinkle.remote_class()
class Maker:
    @twinkle.remote_function(dispatch="all", collect="none")
    def rows(self, number: int) -> list[int]:
        return [number, number]

    @twinkle.remote_function(dispatch="all", collect="none")
    def mean(self, number: int) -> float:
        return float(number)

    @twinkle.remote_function(dispatch="all", collect="none")
    def fails(self, number: int) -> None:
        raise KeyError(number)

    @twinkle.remote_function(dispatch="all", collect="none")
    def waits(self, number: int) -> None:
        time.sleep(5.0)


def refs(inputs: InputReplies) -> tuple[list[Any], list[Any]]:
    """The refs of the inputs and of the watched replies."""
    return [cast("Any", reply).ref for reply in inputs], [cast("Any", reply).ref for reply in inputs.watched]


def calls(methods: list[Any]) -> list[PendingCall]:
    """Calls in flight, each with its number."""
    return [call_of(twinkle.submit(method, number)) for number, method in enumerate(methods)]


def replies(pending: list[PendingCall]) -> list[Reply]:
    """The replies of their ranks 0."""
    return [call.reply(0) for call in pending]


def test_each_task_is_given_its_own_pieces_and_the_first_failure_ends_all(ray_pair: None) -> None:
    maker = twinkle.on("two").create(Maker)
    waiting = WaitingInputs()
    try:
        handed = (
            HandOver(0, INPUTS, "rows", split=True),
            HandOver(INPUTS, 2 * INPUTS, "mean", split=True),
        )
        plan = HandOverPlan("Sink.take", handed, ((0, 1),) * 8, 8)
        made = replies(calls([maker.rows] * INPUTS + [maker.mean] * INPUTS))
        answers = ray.get(list(waiting.replies(InputReplies(made, (), plan), refs)), timeout=120)
        assert [len(share.values[0].pieces) for share in answers] == [INPUTS // 8] * 8
        store = running().backend.store
        for index, share in enumerate(answers):
            assert isinstance(share, HandedShare) and (share.total, share.rows) == (2 * INPUTS, 2 * INPUTS // 8)
            own = [read_piece(store, piece)[0] for piece in share.values[0].pieces]
            assert own == [[number, number] for number in range(index * INPUTS // 8, (index + 1) * INPUTS // 8)]
            assert share.values[1].pieces == (), "what all tasks read is there once"
            pieces = store.get(share.values[1].listing)[0]
            assert [read_piece(store, piece)[0] for piece in pieces] == [float(INPUTS + i) for i in range(INPUTS)]
        pending = calls([maker.rows] * 3 + [maker.fails, maker.waits])
        bad = replies(pending)
        for inputs in (InputReplies(bad[:4], (), plan), InputReplies(bad[4:], bad[3:4], plan)):
            failed = ray.get(list(waiting.replies(inputs, refs)), timeout=120)
            found = [outcome_from_wire(one).failure for one in failed]
            assert [one is not None and one.type_name for one in found] == ["KeyError"] * 8
        assert not pending[4].done(), "the failure of a watched answer ends the wait for an input"
        with pytest.raises(KeyError):
            pending[3].wait()
    finally:
        waiting.close()


PROGRAM = """
    import os, signal, time
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh

    @twinkle.remote_class()
    class Maker:
        @twinkle.remote_function(dispatch="all", collect="none")
        def make(self):
            if twinkle.current_worker().rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)

        @twinkle.remote_function(dispatch="all", collect="none")
        def rank(self):
            return twinkle.current_worker().rank

    @twinkle.remote_class()
    class User:
        def __init__(self, maker=None):
            self.maker = maker

        @twinkle.remote_function(dispatch="all", collect="first")
        def use(self, value):
            return value

        @twinkle.remote_function(dispatch="all", collect="first")
        def make_and_use(self, other):
            return other.use(self.maker.make()).result()

    def failure(call):
        began = time.monotonic()
        try:
            call()
        except twinkle.WorkerDiedError as error:
            return f"{time.monotonic() - began < 20} {str(error).splitlines()[0]}"

    if __name__ == "__main__":
        names = {"maker": 3, "again": 2, "user": 2, "last": 1}
        twinkle.initialize("ray", groups=[DeviceGroup(name, size, "CPU") for name, size in names.items()])
        maker, again, user = Maker(remote_group="maker"), Maker(remote_group="again"), User(remote_group="user")
        print("ALIVE", user.use(again.rank()), flush=True)
        print("DIRECT", failure(lambda: user.use(maker.make()).result()), flush=True)
        print("FREE", user.use(7), flush=True)
        caller = User(again, remote_group="last")
        print("WORKER", failure(lambda: caller.make_and_use(user).result()), flush=True)
        print("FREE", user.use(8), flush=True)
"""


def test_a_lost_producer_is_told_with_its_method_and_node(joined_program: Callable[..., Any]) -> None:
    running = joined_program(PROGRAM)
    assert running.line("ALIVE", 90) == "[0, 1]"
    direct = running.line("DIRECT", 60)
    assert direct.startswith(
        "True User.use did not run, because the call that makes its argument failed: maker[1/3] died during"
    )
    assert "died during Maker.make on " in direct and " pid " in direct and "unknown" not in direct
    assert running.line("FREE", 30) == "7"
    called = running.line("WORKER", 60)
    assert called.startswith("True ") and "again[1/2] died during Maker.make on " in called, called
    assert running.line("FREE", 30) == "8"
    running.finish(60)
