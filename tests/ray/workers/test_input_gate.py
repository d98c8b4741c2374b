"""A producer that is lost ends the calls that were to be given its result, and their workers are free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

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


def test_a_lost_producer_is_told_with_its_method_and_node(program: Callable[..., Any]) -> None:
    running = program(PROGRAM)
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
