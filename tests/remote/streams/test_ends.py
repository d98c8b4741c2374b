"""The end of a stream: async work is cancelled, nothing is waited for in vain, and Ctrl-C ends the program."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import pytest
from tests.remote.signals import interrupted_at_step

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, session, stream, submit

if TYPE_CHECKING:
    from pathlib import Path

WAIT = 30.0
begun, ended, leave = threading.Semaphore(0), threading.Semaphore(0), threading.Event()


@remote_class()
class Maker:
    @remote_function(collect="flatten")
    async def wait(self, rows: list[int]) -> list[int]:
        begun.release()
        try:
            if rows[0]:
                await asyncio.sleep(10 * WAIT)
        finally:
            ended.release()
        return rows

    @remote_function(collect="flatten")
    def work(self, rows: list[int]) -> list[int]:
        begun.release()
        if rows[0]:
            assert leave.wait(WAIT)
        ended.release()
        return rows


def test_a_closed_stream_cancels_async_calls_and_its_component_goes_on() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        maker = on("one").create(Maker)
        with stream([[row] for row in range(8)], maker.wait, rows=1, ahead=5, order="arrival") as batches:
            assert get(next(batches)) == [0]
            for _ in range(6):
                assert begun.acquire(timeout=WAIT)
        for _ in range(6):
            assert ended.acquire(timeout=WAIT), "each coroutine was cancelled, and cleaned up"
        assert get(submit(maker.work, [0])) == [0]


def test_a_closed_stream_does_not_wait_for_ordinary_calls() -> None:
    leave.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        maker = on("two").create(Maker)
        batches = stream([[row] for row in range(8)], maker.work, rows=1, ahead=2, order="arrival")
        assert get(next(batches)) == [0]
        batches.close()
        assert not leave.is_set()
        leave.set()
        assert get(submit(maker.work, [0, 0])) == [0, 0], "the workers are free when they are through"
        assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("twinkle-stream")]


INTERRUPTED = """
    import sys, time
    from pathlib import Path

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote import get, on, remote_class, remote_function, session, stream

    @remote_class()
    class Slow:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows: list[int]) -> list[int]:
            time.sleep(60.0 if rows[0] > 3 else 0.0)
            return rows

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        slow = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Slow)
        for batch in stream([[row] for row in range(99)], slow.make, rows=1, ahead=2):
            print(get(batch), flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_in_the_loop_ends_the_program(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(INTERRUPTED))
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for row in range(4):
            assert process.stdout.readline() == f"[{row}]\n"
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT)
        assert time.monotonic() - began < WAIT / 2, "the sleeping stages would take a minute"
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert "left" not in errors


LAUNCHED = """
    import json, logging, os, sys
    from pathlib import Path

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote import current_worker, get, remote_class, remote_function, session, stream

    logging.basicConfig(level=logging.WARNING, format="%(message)s")

    @remote_class()
    class Model:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> list[tuple[int, int]]:
            return [(row, current_worker().rank) for row in rows]

        @remote_function(dispatch="slice_dp", collect="sum")
        def update(self, rows: list[tuple[int, int]]) -> int:
            return len(rows)

    with session("local", groups=[DeviceGroup("both", 2, "CPU")]):
        model = Model(remote_group="both", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        told = []
        with stream([list(range(at, at + 6)) for at in (0, 6)], model.sample, rows=4, ahead=8, max_lag=1) as batches:
            for batch in batches:
                told.append([get(batch), get(model.update(batch)), batches.info.begun, batches.publish()])
    Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps(told))
"""


@pytest.mark.slow
def test_under_a_launcher_every_process_is_the_synchronous_loop(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(LAUNCHED))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        launched = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    command = [sys.executable, str(path), str(tmp_path)]
    ranks = [
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **launched, "RANK": str(rank)})
        for rank in range(2)
    ]
    errors = []
    try:
        errors = [rank.communicate(timeout=100)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(10)
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    assert told[0] == told[1]
    rows = [[[row, 0], [row + 1, 0], [row + 2, 1], [row + 3, 1]] for row in (0, 4, 8)]
    assert told[0] == [[batch, 4, [number] * 4, number + 1] for number, batch in enumerate(rows)]
    said = "ahead=8 has no effect in mode 'local': the stream is synchronous"
    assert [error.count(said) for error in errors] == [1, 1], "once a process"


@remote_class()
class Quick:
    @remote_function(collect="flatten")
    def take(self, rows: list[int]) -> list[int]:
        time.sleep(0.003)  # longer than the loop takes to ask for it
        return rows


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it may come within a finalizer
def test_ctrl_c_at_any_step_of_a_batch_leaves_a_stream_that_ends() -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        quick = on("two").create(Quick)
        for step in count(1):
            with stream([[1], [2], [3]], quick.take, ahead=1) as batches:
                next(batches)
                was_interrupted = interrupted_at_step(step, partial(next, batches))
            assert "twinkle-stream" not in [thread.name for thread in threading.enumerate()], step
            if not was_interrupted:
                assert step > 50
                break
