"""Loader processes are started by one thread at a time."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_data.loading.loader_processes.process_start import Starter, in_a_thread, recording_context

if TYPE_CHECKING:
    from pathlib import Path


def test_threads_start_processes_one_after_the_other() -> None:
    inside: list[int] = []
    seen: list[int] = []

    def work() -> None:
        inside.append(1)
        time.sleep(0.02)
        seen.append(len(inside))
        inside.pop()

    threads = [threading.Thread(target=in_a_thread, args=(work,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert seen == [1] * 8


def test_a_forked_process_starts_its_own() -> None:
    def fork() -> int:
        child = os.fork()
        if child == 0:
            os._exit(in_a_thread(lambda: 7))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert in_a_thread(fork) == 7


def test_an_error_comes_to_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        in_a_thread(lambda: 1 / 0)
    assert in_a_thread(lambda: 3) == 3


LOCAL = """
import signal, sys, threading
import torch, torch.distributed as dist
from torch.utils.data import DataLoader as TorchLoader
from twinkle_data import DataLoader

own = threading.local()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
own.group = dist.group.WORLD  # as caches of DTensor keep it for a thread
dist.all_reduce(torch.ones(3))
dist.destroy_process_group()

class Rows:
    def __len__(self): return 16
    def __getitem__(self, index): return index

handler = signal.getsignal(signal.SIGCHLD)
loader = DataLoader(Rows(), batch_size=4, num_workers=2, timeout_s=30, restarts=0, multiprocessing_context="fork")
assert sorted(row for batch in loader for row in batch) == list(range(16))
assert signal.getsignal(signal.SIGCHLD) is handler
print("done")
"""


@pytest.mark.slow
def test_a_fork_keeps_what_the_main_thread_holds(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOCAL, str(tmp_path / "group")], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_start_in_the_thread_that_asks(method: str) -> None:
    starter = Starter()
    recorded, made = recording_context(method, starter)
    context: Any = recorded
    main = threading.current_thread()
    ran: list[threading.Thread] = []
    base: Any = multiprocessing.get_context(method)
    kind: Any = type(base.Process())
    plain = kind.start

    def start(self: Any) -> None:
        ran.append(threading.current_thread())
        plain(self)

    def work() -> None:
        process: Any = context.Process(target=os.getpid)
        process.start()
        process.join()
        assert process.exitcode == 0

    kind.start = start
    try:
        in_a_thread(work, starter)
    finally:
        kind.start = plain
    assert ran == [main]
    assert len(made) == 1
