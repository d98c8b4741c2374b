"""Programs of one cluster that begin with the same seed: each has its own lines, and its own random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
    import random, sys
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Printer:
        @twinkle.remote_function(dispatch="all", collect="first")
        def says(self, text):
            print(text, flush=True)

    if __name__ == "__main__":
        random.seed(0)
        twinkle.initialize("ray", groups=[DeviceGroup("one", 1, "CPU")], seed=0)
        print("SEEDED", random.getstate() == random.Random(0).getstate(), flush=True)
        printer = twinkle.on("one").create(Printer)
        for line in sys.stdin:
            if line == "end\\n":
                break
            twinkle.get(printer.says(line.strip()))
        before = random.getstate()
        twinkle.shutdown()
        print("KEPT", random.getstate() == before, flush=True)
"""


def test_the_end_of_one_program_ends_no_lines_of_another(joined_program: Callable[..., Any]) -> None:
    first, second = joined_program(PROGRAM), joined_program(PROGRAM)
    for running in (first, second):
        assert running.line("SEEDED ", 60) == "True"
        running.say("its own")
        running.line("one[0/1] its own", 30)
    second.say("end")
    assert second.line("KEPT ", 60) == "True"
    second.finish(30)
    first.say("after it")
    first.line("one[0/1] after it", 30)
    first.say("end")
    assert first.line("KEPT ", 60) == "True"
    first.finish(30)
