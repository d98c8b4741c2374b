"""What becomes of coroutines when a session ends, or its caller is interrupted."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import asyncio, os, signal, threading, time
from pathlib import Path
import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

@twinkle.remote_class()
class Asks:
    @twinkle.remote_function(dispatch="all")
    async def waits(self, seconds):
        rank = twinkle.current_worker().rank
        Path(f"begun-{rank}").touch()
        try:
            await asyncio.sleep(seconds)
            print("done")
        finally:
            await asyncio.sleep(0.05)
            Path(f"cleaned-{rank}").touch()

GROUPS = [DeviceGroup("two", 2, "CPU")]
"""


def run(source: str, path: Path) -> str:
    file = path / "program.py"
    file.write_text(HEAD + textwrap.dedent(source))
    command = [sys.executable, "-u", str(file)]
    return subprocess.run(command, cwd=path, capture_output=True, text=True, timeout=100, check=True).stdout


def test_an_interrupt_cancels_and_lets_coroutines_clean_up(tmp_path: Path) -> None:
    out = run(
        """
        def interrupt():
            while not (os.path.exists("begun-0") and os.path.exists("begun-1")):
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGINT)

        try:
            with twinkle.session("threads", groups=GROUPS):
                asks = twinkle.on("two").create(Asks)
                threading.Thread(target=interrupt).start()
                twinkle.get(twinkle.submit(asks.waits, 600.0))
        except KeyboardInterrupt:
            print("interrupted", os.path.exists("cleaned-0"), os.path.exists("cleaned-1"))
        """,
        tmp_path,
    )
    assert out == "interrupted True True\n"


def test_a_normal_end_waits_for_coroutines(tmp_path: Path) -> None:
    out = run(
        """
        with twinkle.session("threads", groups=GROUPS):
            asks = twinkle.on("two").create(Asks)
            twinkle.submit(asks.waits, 0.3)
        print("ended")
        """,
        tmp_path,
    )
    assert out.count("done") == 2 and out.endswith("ended\n"), out
