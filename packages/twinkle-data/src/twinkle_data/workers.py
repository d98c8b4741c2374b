"""Loader processes: torch's DataLoader over steps, with its options and its errors."""

from __future__ import annotations

import multiprocessing
import os
import threading
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from twinkle_data.reading import Read


class WorkerOptions(TypedDict, total=False):
    """Options that torch's DataLoader gets as they are; its page says what they do."""

    pin_memory: bool
    pin_memory_device: str
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    persistent_workers: bool


class Processes:
    """Reads steps in loader processes, or here where there are none. torch takes it for a dataset and its sampler."""

    def __init__(
        self,
        read: Callable[[Any], Read | None],
        num_workers: int,
        prefetch_factor: int | None,
        seed: int,
        options: WorkerOptions,
    ) -> None:
        self._read = read
        self._steps: Iterator[Any] = iter(())
        self._torch: Any = None
        if num_workers or options:
            from torch import Generator
            from torch.utils.data import DataLoader

            steps: Any = self
            others: Any = {**options, "worker_init_fn": _Begin(options.get("worker_init_fn"))}
            self._torch = DataLoader(
                steps,
                batch_size=None,
                sampler=steps,
                num_workers=num_workers,
                prefetch_factor=prefetch_factor if num_workers else None,
                collate_fn=_same,
                generator=Generator().manual_seed(seed >> 1),  # torch's would draw from the program's
                **others,
            )

    def __getitem__(self, step: Any) -> Read | None:
        return self._read(step)

    def __iter__(self) -> Iterator[Any]:
        return self._steps

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_steps": iter(()), "_torch": None}

    def run(self, steps: Iterator[Any]) -> Iterator[Read]:
        """The steps that were read, up to the first that does not exist (the end of a stream)."""
        self._steps = steps
        found: Iterator[Read | None] = map(self._read, steps) if self._torch is None else iter(self._torch)
        for read in found:
            if read is None:
                return
            yield read


class _Begin:
    """The begin of a loader process: it watches its parent, and runs the program's `worker_init_fn`."""

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._then = worker_init_fn

    def __call__(self, number: int) -> None:
        threading.Thread(target=_end_with_parent, daemon=True).start()
        if self._then is not None:
            self._then(number)


def _end_with_parent() -> None:
    """End this process within a second after the one that reads from it, also in the middle of a sample.

    A forked process shares its parent's sockets: while it lives, Ray does not see that a killed worker is gone.
    """
    parent, pid = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    while parent.is_alive() and os.getppid() == pid:  # other forks hold its pipe open, and a fork server is in between
        parent.join(1.0)
    os._exit(1)


def _same(value: Any) -> Any:
    return value
