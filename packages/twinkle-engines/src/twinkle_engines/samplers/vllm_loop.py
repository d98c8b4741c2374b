"""EngineLoop: a vLLM engine that runs in a thread and batches the requests of all callers."""

from __future__ import annotations

import gc
import os
import time
import weakref
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

T = TypeVar("T")
_END_SECONDS = 60.0
_RELEASE_SECONDS = 10.0  # that threads may take to leave the last call of a sampler that was released
_IN_PROCESS: weakref.WeakKeyDictionary[Thread, weakref.finalize[..., EngineLoop]] = weakref.WeakKeyDictionary()
"""The threads of engines in this process, and what ends each."""


@dataclass(frozen=True)
class Request:
    """A request: its name, the prompt's ids, vLLM's parameters, its adapters or None, and where its output goes."""

    name: str
    ids: Sequence[int]
    params: Any
    lora: Any
    output: Future[Any]


@dataclass(frozen=True)
class BetweenSteps:
    """A function of the engine, run between two steps, and where its result goes."""

    function: Callable[[Any], Any]
    result: Future[Any]


@dataclass(frozen=True)
class Abort:
    """The caller of a request waits no more."""

    name: str


Job: TypeAlias = "Request | BetweenSteps | Abort | None"


class EngineLoop:
    """A vLLM engine in a thread of its own; requests that arrive while others are written join their batch.

    The engine is in this process, unless the environment says VLLM_ENABLE_V1_MULTIPROCESSING=1. At its end vLLM also
    ends torch's default process group in this process.

    Args:
        arguments: vLLM's engine arguments.

    Raises:
        ValueError: Another engine is in this process.
    """

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        alone = os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        if alone and _is_one_alive():
            raise ValueError(
                "vLLM has one engine in a process, and another VLLMSampler is in this one; use the mode ray, or "
                "VLLM_ENABLE_V1_MULTIPROCESSING=1 in the environment"
            )
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._names = count()
        self._ended = Event()
        ready: Future[None] = Future()
        self._thread = Thread(target=_run, args=(arguments, self._jobs, ready, self._ended), name="vllm", daemon=True)
        self._thread.start()
        ready.result()
        end = weakref.finalize(self, _end, self._jobs, self._thread)
        if alone:
            _IN_PROCESS[self._thread] = end

    def write(self, ids: Sequence[int], params: Any, lora: Any = None) -> Future[Any]:
        """Begin a request; cancelling the future aborts it.

        Returns:
            The future of vLLM's `RequestOutput`.
        """
        output: Future[Any] = Future()
        request = Request(str(next(self._names)), ids, params, lora, output)
        jobs = self._jobs

        def aborted(one: Future[Any]) -> None:
            if one.cancelled():
                jobs.put(Abort(request.name))

        output.add_done_callback(aborted)
        jobs.put(request)
        if self._ended.is_set():  # before the thread refuses what is there, so that nothing comes after that
            _refuse(jobs, RuntimeError("the engine of vLLM has ended"))
        return output

    def run(self, function: Callable[[Any], T]) -> T:
        """The result of a function of the engine, which no request is at work with meanwhile."""
        result: Future[T] = Future()
        self._jobs.put(BetweenSteps(function, result))
        while True:
            try:
                return result.result(timeout=1.0)
            except TimeoutError:
                if result.done():
                    raise  # the function's own
                if self._ended.is_set() and not result.done():
                    raise RuntimeError("the engine of vLLM has ended") from None


def _is_one_alive() -> bool:
    """Whether an engine is in this process, after the end of those whose samplers were released.

    A released sampler may be in reference cycles, and for a moment in frames of the threads that ran its last call. The
    end of its engine may be at work in another thread.
    """
    patience = time.monotonic() + _RELEASE_SECONDS
    while any(thread.is_alive() for thread in _IN_PROCESS):
        gc.collect()
        for thread, end in list(_IN_PROCESS.items()):
            if not end.alive:
                thread.join(_END_SECONDS)
        if time.monotonic() > patience:
            return any(thread.is_alive() for thread in _IN_PROCESS)
        time.sleep(0.05)
    return False


def _end(jobs: SimpleQueue[Job], thread: Thread) -> None:
    jobs.put(None)
    thread.join(_END_SECONDS)


def _run(arguments: Mapping[str, Any], jobs: SimpleQueue[Job], ready: Future[None], ended: Event) -> None:
    try:
        engine = _build(arguments)
    except BaseException as failed:
        ready.set_exception(failed)
        return
    ready.set_result(None)
    waiting: dict[str, Future[Any]] = {}
    error: Exception = RuntimeError("the engine of vLLM was closed")
    try:
        while _take(engine, jobs, waiting):
            for output in engine.step():
                if output.finished and output.request_id in waiting:
                    _settle(waiting.pop(output.request_id), output)
    except BaseException as raised:  # whatever ends this thread, callers wait for it
        error = RuntimeError(f"the engine of vLLM failed and has ended: {type(raised).__name__}: {raised}")
        error.__cause__ = raised
    ended.set()
    for future in waiting.values():
        _settle(future, error)
    _refuse(jobs, error)
    engine.engine_core.shutdown()


def _build(arguments: Mapping[str, Any]) -> Any:
    from vllm import EngineArgs, LLMEngine

    from twinkle_engines.samplers.vllm_weights import register

    register()
    return LLMEngine.from_engine_args(EngineArgs(**arguments))


def _take(engine: Any, jobs: SimpleQueue[Job], waiting: dict[str, Future[Any]]) -> bool:
    """Do all jobs that are there, and wait for one while there is no request; False at the end."""
    while True:
        try:
            job = jobs.get(block=not waiting)
        except Empty:
            return True
        if job is None:
            return False
        if isinstance(job, Abort):
            if waiting.pop(job.name, None) is not None:
                engine.abort_request([job.name])
        elif isinstance(job, BetweenSteps):
            try:
                job.result.set_result(job.function(engine))
            except Exception as error:
                job.result.set_exception(error)
        elif not job.output.cancelled():
            try:
                (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": list(job.ids)}])
                engine.add_request(job.name, prompt, job.params, lora_request=job.lora)
                waiting[job.name] = job.output
            except Exception as error:
                _settle(job.output, error)


def _settle(future: Future[Any], outcome: Any) -> None:
    """Give a future its result or error, unless its caller has cancelled it."""
    with suppress(InvalidStateError):  # the caller has cancelled it
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _refuse(jobs: SimpleQueue[Job], error: Exception) -> None:
    """Settle what came after the end."""
    with suppress(Empty):  # the end of the loop
        while True:
            job = jobs.get(block=False)
            if isinstance(job, Request | BetweenSteps):
                _settle(job.output if isinstance(job, Request) else job.result, error)
