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

from twinkle_remote.errors import CallTimeoutError, RemoteCallError, WorkerDiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def serve(pipe: Connection, build: Callable[..., object], arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    component = build(*arguments)
    pipe.send((True, os.getpid()))
    while True:
        try:
            function, values = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            pipe.send((True, function(component, *values)))
        except Exception as error:
            pipe.send((False, error))


class ProcessPending:
    def __init__(self, crew: ProcessCrew, ranks: Sequence[int]) -> None:
        self.crew = crew
        self.waiting = dict(zip((crew.pipes[rank] for rank in ranks), ranks, strict=True))
        self.values: dict[int, Any] = {}
        self.errors: list[Exception] = []

    def look(self, timeout: float) -> None:
        for pipe in wait(list(self.waiting), timeout):
            assert isinstance(pipe, Connection)
            rank = self.waiting.pop(pipe)
            try:
                good, value = pipe.recv()
            except (EOFError, ConnectionResetError):
                self.errors.append(WorkerDiedError(f"{self.crew.name}[{rank}] died"))
                continue
            if good:
                self.values[rank] = value
            else:
                self.errors.append(value)

    def done(self) -> bool:
        if self.waiting:
            self.look(0.0)
        return not self.waiting

    def failed(self) -> bool:
        return bool(self.errors)

    def results(self, timeout: float | None = None) -> list[Any]:
        end = time.monotonic() + (60.0 if timeout is None else timeout)
        while self.waiting and not self.errors and time.monotonic() < end:
            self.look(0.05)
        if self.errors:
            first = self.errors[0]
            if isinstance(first, WorkerDiedError):
                raise first
            kind = type(first)
            both = type(kind.__name__, (RemoteCallError, kind), {})
            raise both(f"{self.crew.name}: {first}") from first
        if self.waiting:
            late = sorted(self.waiting.values())
            raise CallTimeoutError(f"{self.crew.name}: ranks {late} are late", sorted(self.values), late)
        return [self.values[rank] for rank in sorted(self.values)]


class ProcessCrew:
    """N worker processes that hold one component."""

    polled = True

    def __init__(self, name: str, build: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> None:
        self.name, self.size = name, len(arguments)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.tensor", "twinkle_ray.weights"])
        self.processes, self.pipes = [], []
        for argument in arguments:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, build, argument), daemon=True)
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)
        self.pids = [self.receive(rank, 60.0) for rank in range(self.size)]

    def receive(self, rank: int, timeout: float) -> Any:
        assert self.pipes[rank].poll(timeout), f"{self.name}[{rank}] did not answer in {timeout} s"
        good, value = self.pipes[rank].recv()
        if not good:
            raise value
        return value

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> ProcessPending:
        ranks = list(range(self.size))
        for rank, argument in zip(ranks, arguments, strict=True):
            self.send(rank, function, argument)
        return ProcessPending(self, ranks)

    def send(self, rank: int, function: Callable[..., object], arguments: tuple[object, ...]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.pipes[rank].send_bytes(pickle.dumps((function, arguments)))

    def run(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        return self.start(function, [arguments] * self.size).results(60.0)

    def end(self) -> None:
        for process, pipe in zip(self.processes, self.pipes, strict=True):
            pipe.close()
            process.kill()
            process.join(10)


@pytest.fixture
def process_crew() -> Iterator[Callable[..., ProcessCrew]]:
    crews: list[ProcessCrew] = []

    def build(name: str, component: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> ProcessCrew:
        crews.append(ProcessCrew(name, component, arguments))
        return crews[-1]

    yield build
    for crew in crews:
        crew.end()
