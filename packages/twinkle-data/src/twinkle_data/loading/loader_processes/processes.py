"""Loader processes: torch's DataLoader reads ahead, and is started again where its processes die."""

from __future__ import annotations

import contextlib
import errno
import pickle
import sys
import threading
import time
import warnings
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_data.errors import LoaderProcessError
from twinkle_data.loading.loader_processes.forks import ADVICE, is_fork, warn_of_open_files, warn_of_polars
from twinkle_data.loading.loader_processes.own_generators import DREW_ALIKE
from twinkle_data.loading.loader_processes.process_messages import Message, StepDataset, StepKey, WorkerInit
from twinkle_data.loading.loader_processes.process_start import (
    Starter,
    check_context,
    garbage_kept,
    in_a_thread,
    recording_context,
    unlisted,
)
from twinkle_data.option_checks import check_function, seconds, true_or_false, whole_number
from twinkle_data.order.permutation import derive
from twinkle_remote.backends.support import unless_ending

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

    from twinkle_data.loading.protocol import StepReader
    from twinkle_data.order.steps import Step
    from twinkle_data.reading.delivery import Delivery

# How often torch checks that its processes are alive while it waits; its default is five seconds.
_TICK_S = 0.2
_TIDY_S = 10.0
_FINISH_S = 5.0
_NO_BATCH = "no batch came"


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    """Options of loader processes.

    Attributes:
        num_workers: Loader processes of each rank; 0 reads in the process of the loop.
        prefetch_factor: Batches that each process reads ahead.
        pin_memory: Copy tensors into page-locked memory.
        persistent: Keep the processes after the end of an epoch, and read ahead into the next one.
        multiprocessing_context: "fork", "spawn", "forkserver" or a context; None is the platform's default.
        worker_init_fn: Called in each process with its number.
        timeout_s: Seconds to wait for one batch; after that the processes are killed and started again.
        restarts: Number of restarts without a batch in between; one more is an error.
    """

    num_workers: int = 0
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent: bool = False
    multiprocessing_context: str | BaseContext | None = None
    worker_init_fn: Callable[[int], None] | None = None
    timeout_s: float = 300.0
    restarts: int = 3

    def __post_init__(self) -> None:
        for name in ("num_workers", "prefetch_factor", "restarts"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name)))
        for name in ("pin_memory", "persistent"):
            object.__setattr__(self, name, true_or_false(name, getattr(self, name)))
        if self.num_workers < 0 or self.restarts < 0:
            raise ValueError(f"num_workers={self.num_workers} and restarts={self.restarts} must be at least 0")
        if self.prefetch_factor < 1:
            raise ValueError(f"prefetch_factor={self.prefetch_factor} must be at least 1")
        object.__setattr__(self, "timeout_s", seconds("timeout_s", self.timeout_s))
        if self.timeout_s == 0:
            raise ValueError(f"timeout_s={self.timeout_s} must be above 0 seconds; use math.inf for no limit")
        check_function("worker_init_fn", self.worker_init_fn)
        check_context(self.multiprocessing_context)


class Processes:
    """A pipeline of loader processes that read ahead.

    A process that dies loses the steps that it had read, and usually one of them killed it. So after a loss, one
    process reads one step at a time until as many steps are delivered as were read ahead. Every step that can be read
    is delivered, and the error names the step that cannot.

    Args:
        reader: Reads one step; it is sent to the processes.
        steps: Returns the steps from the first undelivered one on, at each call.
        options: The options.
        key: Determines `torch.initial_seed()` in the processes, together with the first step.
    """

    def __init__(
        self,
        reader: StepReader,
        steps: Callable[[], Iterator[Step]],
        options: ProcessOptions,
        *,
        key: tuple[int, ...] = (),
    ) -> None:
        self._reader = reader
        self._steps = steps
        self._options = options
        self._key = key
        self._running: Any = None
        self._forks = False
        self._started: list[BaseProcess] = []  # the processes of the running iterator
        self._asked: deque[Step] = deque()  # steps that are read ahead; the next one to deliver is in front
        self._warned = False
        self._one_by_one = 0  # steps to deliver before several are read ahead again

    def __iter__(self) -> Iterator[Delivery]:
        return self

    def __next__(self) -> Delivery:
        lost: list[str] = []
        while True:
            try:
                if self._running is None:
                    self._running = self._start()
                message = self._wait()
                delivery = self._opened(message)
                self._warn_if_alike(message)
                self._asked.popleft()
                if self._one_by_one:
                    self._one_by_one -= 1
                    if not self._one_by_one:
                        self.close()
                return delivery
            except _Lost as loss:
                self._kill()
                self._one_by_one = self._options.num_workers * self._options.prefetch_factor
                lost.append(str(loss))
                if len(lost) > self._options.restarts:
                    raise LoaderProcessError(self._loss_message(lost)) from loss.__cause__
            except BaseException:
                # The loop did not get this step, so the next call begins at it again.
                self.close()
                raise

    def close(self) -> None:
        """End the processes."""
        running, self._running = self._running, None
        if running is None:
            return
        # torch gives each process in turn five seconds to finish its sample: here all of them have these together.
        impatient = threading.Timer(_FINISH_S, _kill_all, [self._started])
        impatient.daemon = True
        # While the program ends, no thread begins: start() would wait for ever; since Python 3.12 it raises.
        if not sys.is_finalizing():
            with contextlib.suppress(RuntimeError):  # the program began to end just now
                impatient.start()
        running.__del__()  # torch's own end of an iterator; it may be called twice
        impatient.cancel()
        for process in self._started:
            if process.is_alive():  # torch ended it after its five seconds, and does not wait for that
                process.kill()
                process.join(_TIDY_S)

    def _kill(self) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        _kill_all(self._started)
        # A process that died with a lock of torch's can block this shutdown for ever.
        tidy = threading.Thread(target=running.__del__, name="twinkle-loader-end", daemon=True)
        tidy.start()
        tidy.join(_TIDY_S)

    @unless_ending
    def __del__(self) -> None:
        self.close()

    def _start(self) -> Any:
        import torch
        from torch.utils.data import DataLoader

        options = self._options
        self._asked.clear()
        starter = Starter()
        context, self._started = recording_context(options.multiprocessing_context, starter)
        first = next(self._steps(), None)
        # Otherwise torch would draw the seed from the program's generator.
        generator = torch.Generator()
        generator.manual_seed(derive(*self._key, *((first.epoch, first.position) if first else ())) >> 1)
        loader: Any = DataLoader(
            StepDataset(self._reader),  # type: ignore[arg-type]  # a dataset is anything with [] once batching is off
            batch_size=None,
            sampler=_Steps(self._steps, self._asked),
            num_workers=1 if self._one_by_one else options.num_workers,
            collate_fn=_as_it_is,
            pin_memory=options.pin_memory and torch.accelerator.is_available(),
            timeout=_TICK_S,
            worker_init_fn=WorkerInit(options.worker_init_fn),
            multiprocessing_context=context,
            generator=generator,
            prefetch_factor=1 if self._one_by_one else options.prefetch_factor,
        )
        self._forks = is_fork(context)
        if self._forks:
            warn_of_polars(self._reader.user_code)
            if options.num_workers > 1:
                warn_of_open_files(self._reader.user_code)
        try:
            with garbage_kept():
                return in_a_thread(lambda: unlisted(iter(loader)), starter)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            if self._forks or "pickle" not in str(error):
                raise
            raise TypeError(
                f"the dataset, collate_fn or worker_init_fn cannot be sent to a loader process ({error}): define "
                'classes and functions at the top of a module, or give multiprocessing_context="fork"'
            ) from error

    def _wait(self) -> Message:
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                message: Message = next(self._running)
            except StopIteration:
                raise
            except Exception as error:  # errors of reading come as messages: this one is about the processes
                if _is_out_of_descriptors(error):
                    raise self._out_of_descriptors() from error
                if not (isinstance(error, RuntimeError) and "timed out after" in str(error)):
                    raise _Lost(f"{type(error).__name__}: {error}".splitlines()[0]) from error
                if time.monotonic() > deadline:
                    raise _Lost(f"{_NO_BATCH} within timeout_s={self._options.timeout_s}") from error
            else:
                return message

    def _opened(self, message: Message) -> Delivery:
        alive = [process.is_alive() for process in self._started]
        try:
            return message.open()
        except (OSError, EOFError, RuntimeError) as error:
            if _is_out_of_descriptors(error) and not message.is_problem:
                raise self._out_of_descriptors() from error
            if not all(alive) and not message.is_problem:
                raise _Lost(f"{type(error).__name__}: {error}".splitlines()[0]) from error
            raise

    def _warn_if_alike(self, message: Message) -> None:
        """Warn once of a generator of which each process has a copy."""
        alike = self._options.num_workers > 1 and self._options.worker_init_fn is None
        if message.drew is None or self._warned or not alike:
            return
        self._warned = True
        drew, held = message.drew
        text = DREW_ALIKE.format(drew=drew, held=held, workers=self._options.num_workers)
        warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _out_of_descriptors(self) -> LoaderProcessError:
        return LoaderProcessError(
            "this process has no file descriptor left for what its loader processes send (a large tensor takes one "
            'each): raise the limit (`ulimit -n`), call torch.multiprocessing.set_sharing_strategy("file_system"), or '
            "return fewer and larger tensors from collate_fn"
        )

    def _loss_message(self, lost: list[str]) -> str:
        step = next(self._steps(), None)
        where = "" if step is None else f" while reading epoch {step.epoch}, position {step.position}"
        what = "" if step is None else f"; the indices of that batch are {_short(step.indices)}"
        forked = ""
        if self._forks and any(_NO_BATCH in one for one in lost):
            forked = (
                "They were made by fork: a library that had threads in this process (polars, for one) waits there for "
                f"them for ever; in that case {ADVICE}. "
            )
        return (
            f"loader processes were lost {len(lost)} times in a row{where}: {'; '.join(dict.fromkeys(lost))}{what}. "
            f"{forked}Reading them with num_workers=0 shows another cause; state_dict() still holds the position"
        )


class _Lost(Exception):  # noqa: N818 - an event, caught in this module
    pass


class _Steps:
    """The sampler that torch's DataLoader gets.

    Args:
        steps: Returns the steps.
        asked: Collects the steps that are sent to the processes; batches come back in this order.
    """

    def __init__(self, steps: Callable[[], Iterator[Step]], asked: deque[Step]) -> None:
        self._steps = steps
        self._asked = asked

    def __iter__(self) -> Iterator[StepKey]:
        for step in self._steps():
            self._asked.append(step)
            yield StepKey(step)


def _kill_all(processes: Iterable[BaseProcess]) -> None:
    for process in processes:
        process.kill()


def _is_out_of_descriptors(error: Exception) -> bool:
    return (isinstance(error, OSError) and error.errno == errno.EMFILE) or any(
        said in str(error) for said in ("Too many open files", "items of ancdata")
    )


def _as_it_is(answer: Any) -> Any:
    return answer


def _short(indices: list[int]) -> str:
    return repr(indices) if len(indices) <= 16 else f"[{', '.join(map(str, indices[:16]))}, ...]"
