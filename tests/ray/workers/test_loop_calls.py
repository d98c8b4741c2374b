"""Async methods on Ray: ordinary ones have a thread of their own, a lost worker is noticed, and Ctrl-C is clean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEAD = """
    import asyncio, os, signal, sys, threading, time
    from pathlib import Path
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Asks:
        @twinkle.remote_function(dispatch="all", collect="first")
        def thread(self):
            return threading.get_ident()

        @twinkle.remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

        @twinkle.remote_function(dispatch="all", collect="first")
        async def quick(self):
            return threading.get_ident()

        @twinkle.remote_function(dispatch="all")
        async def exits(self):
            sys.exit(3)

        @twinkle.remote_function(dispatch="all")
        async def waits(self, path):
            Path(f"{path}-begun-{twinkle.current_worker().rank}").touch()
            try:
                await asyncio.sleep(600)
            finally:
                await asyncio.sleep(0.05)
                Path(f"{path}-cleaned-{twinkle.current_worker().rank}").touch()

    def wait_for(*paths):
        until = time.monotonic() + 60
        while not all(map(os.path.exists, paths)) and time.monotonic() < until:
            time.sleep(0.02)

    path = sys.argv[1]
    GROUPS = [DeviceGroup("two", 2, "CPU")]
"""


@pytest.mark.ray
def test_lost_workers_and_exits_are_told(joined_program: Callable[..., Any], tmp_path: Path) -> None:
    source = (
        HEAD
        + """
    with twinkle.session("ray", groups=GROUPS):
        asks = twinkle.on("two").create(Asks)
        own, other, again = twinkle.get(asks.thread()), twinkle.get(asks.quick()), twinkle.get(asks.thread())
        print("threads", own == again, own == other)
        try:
            twinkle.get(asks.exits())
        except twinkle.RemoteCallError as error:
            print("exit:", str(error).splitlines()[0])
        pids = twinkle.get(asks.pid())
        late = twinkle.submit(asks.waits, path)
        wait_for(path + "-begun-0", path + "-begun-1")
        began = time.monotonic()
        os.kill(pids[1], signal.SIGKILL)
        try:
            twinkle.get(late)
        except twinkle.WorkerDiedError as error:
            print("died:", time.monotonic() - began < 60, str(error).splitlines()[0])
"""
    )
    out = joined_program(source, str(tmp_path / "x")).finish(timeout=200)
    assert "threads True False" in out
    assert "exit: Asks.exits failed on two[" in out and "SystemExit: 3" in out
    assert "died: True two[1/2] died during Asks.waits on" in out


@pytest.mark.ray
def test_an_interrupt_lets_coroutines_clean_up(joined_program: Callable[..., Any], tmp_path: Path) -> None:
    source = (
        HEAD
        + """
    def interrupt():
        wait_for(path + "-begun-0", path + "-begun-1")
        os.kill(os.getpid(), signal.SIGINT)

    try:
        with twinkle.session("ray", groups=GROUPS):
            asks = twinkle.on("two").create(Asks)
            threading.Thread(target=interrupt).start()
            twinkle.get(twinkle.submit(asks.waits, path))
    except KeyboardInterrupt:
        print("interrupted", os.path.exists(path + "-cleaned-0"), os.path.exists(path + "-cleaned-1"))
"""
    )
    out = joined_program(source, str(tmp_path / "x")).finish(timeout=200)
    assert "interrupted True True" in out
