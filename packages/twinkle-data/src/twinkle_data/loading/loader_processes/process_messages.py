"""The messages between the loop and its loader processes: steps, and pickled deliveries or errors."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from twinkle_data.errors import BadSampleError, bad_sample
from twinkle_data.loading.loader_processes.own_generators import OwnGenerators
from twinkle_data.loading.loader_processes.process_start import garbage_left
from twinkle_data.order.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.loading.protocol import StepReader
    from twinkle_data.reading.delivery import Delivery

# A tensor in shared memory takes a file descriptor on both sides; a small one is faster in the message.
_SHARED_BYTES = 1 << 16
_SHARED_MOST = 16
# Seconds between checks for the parent, if the system does not report its end.
_PARENT_S = 1.0


class StepKey(tuple[Any, ...]):
    """A step that is sent to a loader process; a plain tuple unpickles in half the time."""

    __slots__ = ()


class Message:
    """A delivery or a problem, pickled in the loader process, so that an error of pickling is reported too.

    Attributes:
        drew: Kind and holder of a generator that the process has a copy of, and drew from.
    """

    __slots__ = ("content", "drew", "is_problem", "pickled")

    def __init__(self, pickled: bytes, *, is_problem: bool = False, drew: tuple[str, str] | None = None) -> None:
        self.pickled = pickled
        self.is_problem = is_problem
        self.drew = drew
        self.content: Delivery | Problem | None = None

    def pin_memory(self) -> Message:
        """Copy the tensors into page-locked memory; torch's loader calls this in a thread."""
        try:
            content: Delivery | Problem = pickle.loads(self.pickled)
            self.content = content if isinstance(content, Problem) else content.pin_memory()
        except Exception as error:  # raised again in the loop
            self.content, self.is_problem = Problem.of(error), True
        return self

    def open(self) -> Delivery:
        """Return the delivery.

        Raises:
            Exception: The error of the loader process, with its traceback as a note.
        """
        content: Delivery | Problem = pickle.loads(self.pickled) if self.content is None else self.content
        if isinstance(content, Problem):
            raise content.error_here()
        return content

    def __reduce__(self) -> tuple[Any, ...]:
        return _message, (self.pickled, self.is_problem, self.drew)


def _message(pickled: bytes, is_problem: bool, drew: tuple[str, str] | None) -> Message:
    return Message(pickled, is_problem=is_problem, drew=drew)


@dataclass(slots=True)
class Problem:
    """An error of a loader process, ready to be sent.

    Attributes:
        error: The error; None where it cannot be pickled.
        text: Its text.
        index: Index of the sample that caused it; -1 where there is none.
        trace: Its traceback, after a line that names the process.
    """

    error: Exception | None
    text: str
    index: int
    trace: str

    @classmethod
    def of(cls, error: Exception, where: str = "in a loader process") -> Problem:
        """Make an error ready to be sent."""
        index = error.index if isinstance(error, BadSampleError) else -1
        cause = error.__cause__ if isinstance(error, BadSampleError) else error
        trace = "".join(traceback.format_exception(error)).rstrip()
        try:
            pickle.loads(pickle.dumps(cause))
        except Exception:  # it cannot be sent: its text is
            cause = None
        return cls(cause if isinstance(cause, Exception) else None, str(error), index, f"{where}:\n{trace}")

    def error_here(self) -> Exception:
        """The error to raise in the loop."""
        own = self.index < 0 and self.error is not None and not isinstance(self.error, StopIteration)
        error = self.error if own else bad_sample(self.text, self.index, self.error)
        assert error is not None
        error.add_note(self.trace)
        return error


class StepDataset:
    """The dataset that torch's DataLoader gets: a `StepKey` reads a step; everything else goes to the user's dataset.

    So `get_worker_info().dataset` in a loader process reads and sets attributes of the user's dataset.

    Args:
        reader: Reads the steps.
    """

    __slots__ = ("_generators", "_problem", "_reader")

    _reader: StepReader
    _problem: Problem | None
    _generators: OwnGenerators

    def __init__(self, reader: StepReader) -> None:
        object.__setattr__(self, "_reader", reader)
        object.__setattr__(self, "_problem", None)
        object.__setattr__(self, "_generators", OwnGenerators(reader.user_code))

    def __getstate__(self) -> StepReader:
        return self._reader

    def __setstate__(self, reader: StepReader) -> None:
        StepDataset.__init__(self, reader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._reader.dataset, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._reader.dataset, name, value)

    def __len__(self) -> int:
        return len(self._reader.dataset)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, StepKey):
            return self._reader.dataset[key]
        try:
            if self._problem is not None:
                return Message(_pickled(self._problem), is_problem=True)
            self._generators.begin()
            delivery = self._reader.read(Step(*key))
            drew = self._generators.drawn()
        except Exception as error:  # raised again in the process of the loop
            return Message(_pickled(Problem.of(error)), is_problem=True)
        try:
            return Message(_pickled(delivery), drew=drew)
        except Exception as error:
            refusal = TypeError(
                f"a batch cannot be sent from its loader process ({type(error).__name__}: {error}); return plain "
                "data, arrays or tensors, or use num_workers=0"
            )
            refusal.__cause__ = error
            return Message(_pickled(Problem.of(refusal)), is_problem=True)


class WorkerInit:
    """Watches the parent and runs the user's `worker_init_fn`; every step answers with its error, if it raised one.

    Args:
        worker_init_fn: The user's function; takes the number of the process.
    """

    def __init__(self, worker_init_fn: Callable[[int], None] | None) -> None:
        self._worker_init_fn = worker_init_fn
        self._collects = gc.isenabled()

    def __call__(self, number: int) -> None:
        """Run it in loader process `number`."""
        from torch.utils.data import get_worker_info

        garbage_left(collects=self._collects)
        threading.Thread(target=_end_with_parent, name="twinkle-loader-parent", daemon=True).start()
        if self._worker_init_fn is None:
            return
        try:
            self._worker_init_fn(number)
        except Exception as error:  # raised again in the process of the loop
            info = get_worker_info()
            assert info is not None
            served: Any = info.dataset
            object.__setattr__(served, "_problem", Problem.of(error, f"in worker_init_fn of loader process {number}"))


def _end_with_parent() -> None:
    """End this process when the one that reads from it is gone, also in the middle of a sample.

    A forked process shares its parent's sockets: while it lives, the parent's peers do not see that the parent died.
    """
    parent, pid = multiprocessing.parent_process(), os.getppid()
    assert parent is not None
    # Other forks may hold the parent's pipe open, and a fork server is a parent in between: check both.
    while parent.is_alive() and os.getppid() == pid:
        parent.join(_PARENT_S)
    os._exit(1)


def _pickled(content: Delivery | Problem) -> bytes:
    buffer = io.BytesIO()
    _ContentPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(content)
    return buffer.getvalue()


class _ContentPickler(ForkingPickler):
    """Pickles small tensors into the message, and large ones after the first few."""

    def __init__(self, buffer: io.BytesIO, protocol: int) -> None:
        super().__init__(buffer, protocol)
        self._shared = 0

    def reducer_override(self, value: Any) -> Any:
        import torch

        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        # torch would lose the conjugate and negative bits.
        lazy = value.is_conj() or value.is_neg()
        if value.nbytes >= _SHARED_BYTES and self._shared < _SHARED_MOST and not lazy:
            self._shared += 1
            return NotImplemented
        words = value.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return _tensor, (bytearray(words.numpy()), value.dtype, tuple(value.shape))


def _is_plain(value: Any) -> bool:
    import torch

    return (
        value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_quantized or value.is_nested)
    )


def _tensor(words: bytearray, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(words, dtype=dtype).reshape(shape) if words else torch.empty(shape, dtype=dtype)
