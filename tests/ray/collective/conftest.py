"""Real processes for collective tests: each runs one function of its rank, and every wait has a limit."""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
import traceback
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, Protocol

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_SECONDS = 180.0


class RunRanks(Protocol):
    """Run `function(rank, *arguments)` in `world_size` processes; results in rank order, None for lost ones."""

    def __call__(
        self, world_size: int, function: Callable[..., Any], *arguments: object, lost: Sequence[int] = ()
    ) -> list[Any]: ...


def serve(pipe: Connection, rank: int, world_size: int, port: int, function: Callable[..., Any], rest: Any) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    try:
        pipe.send((True, function(rank, *rest)))
    except Exception:
        pipe.send((False, traceback.format_exc()))


def run_in_processes(
    world_size: int, function: Callable[..., Any], *arguments: object, lost: Sequence[int] = ()
) -> list[Any]:
    context = multiprocessing.get_context("forkserver")
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())
    pipes, processes = [], []
    for rank in range(world_size):
        ours, theirs = context.Pipe()
        process = context.Process(target=serve, args=(theirs, rank, world_size, port, function, arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results: dict[int, Any] = {}
    failures: list[str] = []
    deadline = time.monotonic() + LIMIT_SECONDS
    waiting = {pipe: rank for rank, pipe in enumerate(pipes)}
    try:
        while set(waiting.values()) - set(lost) and time.monotonic() < deadline:
            for pipe in wait(list(waiting), 0.2):
                assert isinstance(pipe, Connection)
                rank = waiting.pop(pipe)
                try:
                    good, value = pipe.recv()
                except EOFError:
                    continue
                if good:
                    results[rank] = value
                else:
                    failures.append(f"rank {rank}: {value}")
            if failures and len(results) + len(failures) == world_size:
                break
        late = sorted(waiting.values())
    finally:
        for process in processes:
            process.kill()
            process.join(10)
        del store
    assert not failures, "\n".join(failures)
    return [None if rank in late else results.get(rank) for rank in range(world_size)]


@pytest.fixture(scope="session")
def run_ranks(fork_server: None) -> RunRanks:
    return run_in_processes
