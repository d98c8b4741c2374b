"""Ctrl-C at random moments of a program that sends calls to several ranks on Ray: all of them get a call, or none.

One that ends the session cancels coroutines, which clean up.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.ray
_INTERRUPTS = os.environ.get("TWINKLE_TEST_INTERRUPTS", "15")

PROGRAM = """
    import asyncio, os, random, signal, sys, threading, time
    from pathlib import Path

    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Meets:
        def __init__(self) -> None:
            self.numbers = []

        @twinkle.remote_function(dispatch="all", collective=True)
        def meet(self, number):
            self.numbers.append(number)
            return number

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def rows(self, rows):
            self.numbers.append(-1)
            return rows

        @twinkle.remote_function(dispatch="all")
        async def later(self, number):
            return number

        @twinkle.remote_function(dispatch="all")
        async def dreams(self, folder):
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.05)
                Path(folder, f"cleaned-{twinkle.current_worker().rank}").touch()

        @twinkle.remote_function(dispatch="all", collect="none")
        def log(self):
            return self.numbers

    def until_interrupted(meets, rng, seconds):
        over = threading.Event()

        def interrupt():
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)
            if not over.wait(5):  # Python drops one that comes as it enters a finalizer, about 1 in 100 here
                os.kill(os.getpid(), signal.SIGINT)

        timer = threading.Thread(target=interrupt)
        timer.start()
        kept = []
        try:
            while True:
                number = rng.randrange(1000)
                made = meets.rows([number, 1, 2, 3])
                kept = [*kept[-4:], meets.meet(number), meets.rows(made), meets.later(number)]
                if number % 3 == 0:
                    twinkle.get(kept[0])
        finally:
            over.set()
            timer.join()

    if __name__ == "__main__":
        rng = random.Random(int(sys.argv[1]))
        with twinkle.session("ray", groups=[DeviceGroup("three", 3, "CPU")]):
            meets = twinkle.on("three").create(Meets)
            twinkle.get(meets.meet(0))
            for turn in range(int(sys.argv[2])):
                try:
                    until_interrupted(meets, rng, rng.random() * 0.1)
                except KeyboardInterrupt:
                    pass
                got = twinkle.submit(meets.log).result(60)
                assert got[0] == got[1] == got[2], [part[-12:] for part in got]
                assert twinkle.submit(meets.later, turn).result(60) == [turn] * 3
            print("WORKS", len(got[0]), flush=True)
            dreams = meets.dreams(os.getcwd())
            twinkle.get(meets.later(0))  # coroutines begin in order
            until_interrupted(meets, rng, 0.05)
"""


def test_ranks_agree_on_what_was_sent_after_real_interrupts(joined_program: Callable[..., Any], tmp_path: Path) -> None:
    running = joined_program(PROGRAM, "0", _INTERRUPTS)
    assert int(running.line("WORKS", 120)) > int(_INTERRUPTS)
    assert running.process.wait(300) == -signal.SIGINT  # the last one is not caught: it ends session and program
    assert sorted(path.name for path in tmp_path.glob("cleaned-*")) == [f"cleaned-{rank}" for rank in range(3)]
    assert running.left_over(20) == []
