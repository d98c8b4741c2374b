"""Processes that a worker has started: they end with it, however it ends."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.ray

PROGRAM = """
    import json, os, pathlib, signal, sys, time
    import twinkle_remote as twinkle
    from twinkle_data import DataLoader
    from twinkle_mesh import DeviceGroup

    FOLDER = pathlib.Path(sys.argv[1])

    class Slow:
        def __init__(self, folder):
            self.folder = folder

        def __len__(self):
            return 64

        def __getitem__(self, index):
            if index >= 8:
                (pathlib.Path(self.folder) / f"busy-{os.getpid()}").touch()
                time.sleep(600)
            return index

    @twinkle.remote_class()
    class Reader:
        def __init__(self, folder):
            self.folder = folder

        @twinkle.remote_function(dispatch="all")
        def read(self):
            if twinkle.current_worker().rank == 0:
                return 0
            (pathlib.Path(self.folder) / "reader").write_text(str(os.getpid()))
            return sum(len(batch) for batch in DataLoader(Slow(self.folder), batch_size=4, num_workers=2))

        @twinkle.remote_function(dispatch="all")
        def pid(self):
            return os.getpid()

    def busy():
        return [int(path.name.removeprefix("busy-")) for path in FOLDER.glob("busy-*")]

    def exists(pid):
        try:
            return b") Z" not in (pathlib.Path("/proc") / str(pid) / "stat").read_bytes()
        except OSError:
            return False

    def wait_until(true, seconds):
        until = time.monotonic() + seconds
        while not true() and time.monotonic() < until:
            time.sleep(0.02)
        return true()

    if __name__ == "__main__":
        groups = [DeviceGroup("readers", 2, "CPU"), DeviceGroup("other", 1, "CPU")]
        twinkle.initialize("ray", groups=groups, restart="group")
        reader = twinkle.on("readers").create(Reader, str(FOLDER))
        other = twinkle.on("other").create(Reader, str(FOLDER))
        reading = reader.read()
        assert wait_until(lambda: len(busy()) == 2, 120), busy()
        pids = busy()
        began = time.monotonic()
        os.kill(int((FOLDER / "reader").read_text()), signal.SIGKILL)
        try:
            kind, text = "", reading.result(60)
        except twinkle.TwinkleError as error:
            kind, text = type(error).__name__, str(error)
        seconds = time.monotonic() - began
        gone = wait_until(lambda: not any(map(exists, pids)), 60)
        print("TOLD", json.dumps({"kind": kind, "text": str(text), "seconds": seconds, "gone": gone}), flush=True)
        assert twinkle.get(other.pid()) > 0
        import twinkle_ray
        twinkle_ray.restart("readers")
        print("AGAIN", len(set(twinkle.get(reader.pid()))), flush=True)
        twinkle.shutdown()
        print("ENDED", flush=True)
"""


def test_loader_processes_of_a_killed_worker_end_with_it(joined_program: Callable[..., Any], tmp_path: Any) -> None:
    running = joined_program(PROGRAM, str(tmp_path))
    told = json.loads(running.line("TOLD ", 60))
    assert told["kind"] == "WorkerDiedError", told
    assert told["text"].startswith("readers[1/2] died during Reader.read on ")
    assert told["seconds"] < 15
    assert told["gone"]
    assert running.line("AGAIN ", 40) == "2"
    running.line("ENDED", 60)
    running.finish(30)
    assert running.left_over(10) == []
