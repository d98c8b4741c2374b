"""Worker processes for weight syncs, without a backend: one pipe each, one function at a time, as on any worker."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import time
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_remote.errors import CallTimeoutError
from twinkle_remote.failures.capture import capture
from twinkle_remote.failures.raising import raise_failures
from twinkle_remote.protocol import Failure, WorkerInfo

if TYPE_CHECKING:
    import signal
    from collections.abc import Callable, Iterator, Sequence

LIMIT_SECONDS = 180.0


def serve(pipe: Connection, info: WorkerInfo, build: Callable[..., object], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    component = build(*arguments)
    pipe.send((0, True, os.getpid()))
    while True:
        try:
            number, function, values = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            return
        try:
            pipe.send((number, True, function(component, *values)))
        except Exception as error:
            pipe.send((number, False, capture(error, info.label(), info, function.__name__, live=False)))


class ProcessPending:
    """A function under way on some processes of a group; answers to earlier calls that have timed out are skipped."""

    def __init__(self, workers: ProcessWorkers, number: int, ranks: Sequence[int]) -> None:
        self.workers, self.number = workers, number
        self.waiting = {workers.pipes[rank]: rank for rank in ranks}
        self.values: dict[int, Any] = {}
        self.failures: list[Failure] = []

    def look(self, timeout: float) -> None:
        """Read what there is; an answer to another question waits in the group's inbox."""
        if not any((rank, self.number) in self.workers.inbox for rank in self.waiting.values()):
            for pipe in wait(list(self.waiting), timeout):
                assert isinstance(pipe, Connection)
                rank = self.waiting[pipe]
                try:
                    number, good, value = pipe.recv()
                except (EOFError, ConnectionResetError):
                    info = self.workers.info(rank)
                    died = Failure(info.label(), f"pid {info.pid}", "", "the process ended", died=True)
                    number, good, value = self.number, False, died
                self.workers.inbox[rank, number] = (good, value)
        for pipe, rank in list(self.waiting.items()):
            if (rank, self.number) in self.workers.inbox:
                del self.waiting[pipe]
                good, value = self.workers.inbox.pop((rank, self.number))
                if good:
                    self.values[rank] = value
                else:
                    self.failures.append(value)

    def done(self) -> bool:
        if self.waiting:
            self.look(0.0)
        return not self.waiting

    def failed(self) -> bool:
        return bool(self.failures)

    def results(self, timeout: float | None = None) -> list[Any]:
        end = time.monotonic() + (LIMIT_SECONDS if timeout is None else timeout)
        while self.waiting and not self.failures and time.monotonic() < end:
            self.look(0.05)
        if self.failures:
            raise_failures("Component.step", self.workers.name, self.failures, "")
        if self.waiting:
            late = sorted(self.waiting.values())
            raise CallTimeoutError(f"{self.workers.name}: ranks {late} are late", sorted(self.values), late)
        return [self.values[rank] for rank in sorted(self.values)]

    def let_go(self) -> None:
        pass


class ProcessWorkers:
    """N worker processes that hold one component each; a lost one can be started again."""

    polled = True

    def __init__(self, name: str, build: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> None:
        self.name, self.size = name, len(arguments)
        self.context = multiprocessing.get_context("forkserver")
        self.build, self.arguments = build, arguments
        started = [self.launch(rank) for rank in range(self.size)]
        self.processes = [process for process, _ in started]
        self.pipes = [pipe for _, pipe in started]
        self.number = 0
        self.inbox: dict[tuple[int, int], tuple[bool, Any]] = {}
        self.pids = [ProcessPending(self, 0, [rank]).results()[0] for rank in range(self.size)]

    def info(self, rank: int) -> WorkerInfo:
        return WorkerInfo(self.name, rank, self.size, "here", self.pids[rank])

    def launch(self, rank: int) -> tuple[Any, Connection]:
        ours, theirs = self.context.Pipe()
        info = WorkerInfo(self.name, rank, self.size, "here")
        process = self.context.Process(target=serve, args=(theirs, info, self.build, self.arguments[rank]), daemon=True)
        process.start()
        theirs.close()
        return process, ours

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> ProcessPending:
        return self.ask(function, dict(enumerate(arguments)))

    def ask(self, function: Callable[..., object], arguments: dict[int, tuple[object, ...]]) -> ProcessPending:
        self.number += 1
        for rank, argument in arguments.items():
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.pipes[rank].send_bytes(pickle.dumps((self.number, function, argument)))
        return ProcessPending(self, self.number, list(arguments))

    def run(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        return self.start(function, [arguments] * self.size).results()

    def call(self, rank: int, function: Callable[..., object], *arguments: object) -> Any:
        return self.ask(function, {rank: arguments}).results()[0]

    def answers(self, rank: int) -> bool:
        pending = self.ask(alive, {rank: ()})
        end = time.monotonic() + 2.0
        while pending.waiting and time.monotonic() < end:
            pending.look(0.1)
        return not pending.waiting and not pending.failures

    def restart(self, rank: int) -> None:
        self.pipes[rank].close()
        self.processes[rank].kill()
        self.processes[rank].join(10)
        self.processes[rank], self.pipes[rank] = self.launch(rank)
        self.pids[rank] = ProcessPending(self, 0, [rank]).results()[0]

    def signal(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def end(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            process.kill()
            process.join(10)


def alive(component: object) -> bool:
    return True


@pytest.fixture(scope="module")
def process_workers(fork_server: None) -> Iterator[Callable[..., ProcessWorkers]]:
    built: list[ProcessWorkers] = []

    def build(name: str, component: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> ProcessWorkers:
        built.append(ProcessWorkers(name, component, arguments))
        return built[-1]

    yield build
    for workers in built:
        workers.end()
