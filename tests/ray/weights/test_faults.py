"""A worker is killed or stopped at every step of a sync: a bounded error that names it, old weights, a next sync."""

from __future__ import annotations

import logging
import os
import queue
import re
import signal
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import Parameter

from twinkle_ray.weights import ReplaceableWeights, Shard, WeightSync, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.transport.gloo import GlooLink
from twinkle_ray.weights.worker import commit as commit_module
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from twinkle_ray.weights.shards.shard import Weights

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROWS, COLUMNS = 8, 140_000  # a rank's block is above 1 MiB: it has a bucket of its own
SILENCE = 4.0
BOUND = 20.0
PAIRS = 4  # one for the cases that wait for nothing, the others for those that wait for the silence of a stopped worker
LIMIT = 240.0


class Part:
    """One of two ranks: half of the rows of every tensor; at the target, half of the columns.

    Where its memory is replaced, blocks are copied to memory of its own for "a" and "b", and "small" lives where it
    arrives.
    """

    def __init__(self, side: str, rank: int, replaceable: bool) -> None:
        self.rank, self.replaceable = rank, replaceable
        self.versions: list[int] = []
        self.fault: Callable[[str], None] = lambda step: None
        shape, offset = (ROWS // 2, COLUMNS), (rank * ROWS // 2, 0)
        if side == "target":
            shape, offset = (ROWS, COLUMNS // 2), (0, rank * COLUMNS // 2)
        self.tensors = {name: Shard(zeros(*shape), (ROWS, COLUMNS), offset) for name in ("a", "b")}
        self.small = zeros(3)

    def weights(self) -> Weights:
        self.fault("describe")
        own: Weights = {**self.tensors, "small": self.small}
        return ReplaceableWeights(own) if self.replaceable else own

    def on_weights(self, version: int) -> None:
        self.fault("on_weights")
        self.versions.append(version)


def zeros(*shape: int) -> Parameter:
    return Parameter(torch.zeros(shape), requires_grad=False)


def fill(part: Part, value: float) -> None:
    for shard in part.tensors.values():
        shard.tensor.fill_(value)
    part.small.fill_(value)


def values(part: Part) -> set[float]:
    blocks = [shard.tensor for shard in part.tensors.values()]
    return {float(value) for block in (*blocks, part.small) for value in (block.min(), block.max())}


def arm(part: Part, step: str, how: signal.Signals | None) -> None:
    """Have this worker end, stop, or raise at a step of its next sync."""

    def strike(at: str) -> None:
        if at == step:
            part.fault = lambda step: None
            if how is None:
                raise KeyError(f"broken at {step}")
            os.kill(os.getpid(), how)

    part.fault = strike
    for name in ("prepare", "transfer", "fetch", "commit", "finalize"):
        setattr(endpoint, name, before(getattr(endpoint, name), part, name))
    GlooLink.post = before(GlooLink.post, part, "post")  # type: ignore[method-assign]  # where a fault strikes
    commit_module._exchange = before(commit_module._exchange, part, "write")
    commit_module.copy_all = before(commit_module.copy_all, part, "copy")  # type: ignore[attr-defined]  # as above
    graph: Any = torch.autograd.graph  # all memory is replaced when this is called
    graph.increment_version = before(graph.increment_version, part, "write")


def before(function: Callable[..., Any], part: Part, step: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        part.fault(step)
        return function(*args, **kwargs)

    wrapped.__name__, wrapped.__qualname__ = function.__name__, function.__qualname__
    wrapped.__module__ = function.__module__
    return wrapped


class Messages(logging.Handler):
    """What is logged, by the thread that logs it."""

    def __init__(self) -> None:
        super().__init__()
        self.of_threads: dict[int | None, list[str]] = defaultdict(list)

    def emit(self, record: logging.LogRecord) -> None:
        self.of_threads[record.thread].append(record.getMessage())


class Pair:
    """Two sources and two targets that live through faults of this file, one after the other."""

    def __init__(self, process_workers: Callable[..., Any], number: int, messages: Messages, replaceable: bool) -> None:
        self.both_sides = {
            side: process_workers(f"{name}{number}", Part, [(side, rank, replaceable) for rank in range(2)])
            for side, name in (("source", "actor"), ("target", "sampler"))
        }
        self.value = 0.0
        self.messages = messages

    def logged(self) -> list[str]:
        """What this thread has logged since the last question."""
        return self.messages.of_threads.pop(threading.get_ident(), [])

    def synced(self, transport: Any, **options: Any) -> WeightSync:
        """A sync that has worked once."""
        sync = WeightSync(
            self.both_sides["source"],
            self.both_sides["target"],
            transport=transport,
            silence=SILENCE,
            bucket_bytes=1 << 20,
            **options,
        )
        self.again(sync)
        return sync

    def again(self, sync: WeightSync) -> None:
        self.value += 1
        self.both_sides["source"].run(fill, self.value)
        sync()
        assert self.both_sides["target"].run(values) == [{self.value}] * 2


STEPS = {
    "source": ["describe", "prepare", "transfer", "post", "finalize"],
    "target": ["describe", "prepare", "transfer", "post", "fetch", "commit", "write", "finalize", "on_weights"],
}
CASES = [
    (transport, side, step)
    for transport in ("gloo", "shared")
    for side, steps in STEPS.items()
    for step in steps
    if not (transport == "gloo" and step == "fetch") and not (transport == "shared" and step == "post")
]


# Each step is killed over both transports; what stops or raises there does so the same over either.
ONCE = {"gloo": signal.SIGSTOP, "shared": None}
FAULTS = [(*case, signal.SIGKILL) for case in CASES] + [(*case, ONCE[case[0]]) for case in CASES]
# Over shared memory a later sync describes and transfers in one step, whose silence counts once a rank has begun it.
FAULTS += [("shared", "source", "transfer", signal.SIGSTOP), ("shared", "target", "describe", signal.SIGSTOP)]
WRITES = [
    (transport, step, how)
    for transport, hows in (("shared", [signal.SIGKILL, None, signal.SIGSTOP]), ("gloo", [signal.SIGKILL, None]))
    for step in ("commit", "copy")
    for how in hows
]
REPLACED = [case for case in CASES if case[2] in ("transfer", "fetch", "commit", "write", "finalize")]
GOING_ON = ["transfer", "commit", "write"]


def suffer(pair: Pair, transport: str, side: str, step: str, how: signal.Signals | None) -> None:
    """Check one fault: what is told, what the survivors have, and the next sync."""
    unwatched = (transport, step, how) == ("gloo", "describe", signal.SIGSTOP)
    limit = 4.0 if unwatched else 60.0
    sync = pair.synced(transport, timeout=limit, keep_old=True)
    committed, before_fault = sync.version, pair.value
    if step in ("prepare", "fetch"):  # a sync that repeats the last one has neither
        sync._controller.forget()
    workers = pair.both_sides[side]
    workers.call(1, arm, step, how)
    pair.both_sides["source"].run(fill, before_fault + 0.5)
    pair.logged()
    began = time.monotonic()
    in_place = step in ("finalize", "on_weights")
    if in_place and (how is signal.SIGKILL or (how is signal.SIGSTOP and side == "source")):
        assert sync() == committed + 1
        message = "is in place"
    else:
        with pytest.raises(WeightSyncError) as caught:
            sync()
        message = str(caught.value)
    assert time.monotonic() - began < BOUND
    if message == "is in place":
        placed = f"version {committed + 1} of the weights is in place; at the step 'finalize'"
        assert placed in "\n".join(pair.logged())
    elif how is None:
        assert f"{workers.name}[1/2]" in message and f"KeyError: 'broken at {step}'" in message
    elif how is signal.SIGKILL:
        assert f"{workers.name}[1/2] died" in message
    else:
        assert isinstance(caught.value, WeightSyncTimeoutError)
        who = f"{side} rank 1 \\(host .*, pid {workers.pids[1]}\\)"
        named = f"{who} showed no sign of life for {SILENCE:g} s: stopped, or stuck"
        assert re.search(f"{workers.name}: ranks \\[1\\] are late" if unwatched else named, message)
    assert sync.version == committed + in_place
    assert ("is in place" in message) == in_place
    survivors = [0, 1] if how is None or side == "source" else [0]
    for rank in survivors:
        assert pair.both_sides["target"].call(rank, values) == {before_fault + (0.5 if in_place else 0)}
    if how is not None:
        workers.restart(1)
    pair.value = before_fault + 1
    pair.again(sync)
    sync.close()


def go_on(pair: Pair, transport: str, step: str) -> None:
    """Check a target that is stopped and goes on after the error."""
    sync = pair.synced(transport, timeout=60.0, keep_old=True)
    target = pair.both_sides["target"]
    target.call(1, arm, step, signal.SIGSTOP)
    pair.both_sides["source"].run(fill, pair.value + 0.5)
    with pytest.raises(WeightSyncTimeoutError):
        sync()
    target.signal(1, signal.SIGCONT)
    assert target.run(values) == [{pair.value}] * 2
    pair.again(sync)
    sync.close()


def versions(part: Part) -> list[int]:
    return part.versions


def write_on(pair: Pair, transport: str, step: str, how: signal.Signals | None) -> None:
    """Check one fault in the write of a sync that has nothing to go back to: what has arrived everywhere is final."""
    sync = pair.synced(transport, timeout=60.0)
    committed, target = sync.version, pair.both_sides["target"]
    already = target.call(0, versions)
    target.call(1, arm, step, how)
    pair.value += 1
    pair.both_sides["source"].run(fill, pair.value)
    pair.logged()
    if how is signal.SIGSTOP:
        with pytest.raises(WeightSyncTimeoutError, match="has arrived on all ranks"):
            sync()
        target.signal(1, signal.SIGCONT)
        assert target.run(values) == [{pair.value}] * 2
        pair.again(sync)
        sync.close()
        return
    assert sync() == committed + 1
    logged = "\n".join(pair.logged())
    assert f"version {committed + 1} of the weights has arrived on all ranks" in logged
    assert (f"{target.name}[1/2] died" if how else f"KeyError: 'broken at {step}'") in logged
    assert target.call(0, values) == {pair.value}
    assert target.call(0, versions) == [*already, committed + 1]
    if how is None:
        assert target.call(1, values) == {pair.value}
        assert target.call(1, versions)[-2:] == target.call(0, versions)[-2:]
    else:
        target.restart(1)
    pair.again(sync)
    sync.close()


class Faults:
    """Checks of faults on pairs: those that wait for a silence begin at once, beside each other."""

    def __init__(self, pairs: list[Pair], replaced: Pair, pool: ThreadPoolExecutor) -> None:
        self.free: dict[bool, queue.SimpleQueue[Pair]] = {kind: queue.SimpleQueue() for kind in (False, True)}
        self.free[True].put(replaced)
        for pair in pairs:
            self.free[False].put(pair)
        waiting: list[tuple[Any, ...]] = [(False, suffer, *fault) for fault in FAULTS if fault[-1] is signal.SIGSTOP]
        waiting += [(False, go_on, "gloo", step) for step in GOING_ON]
        waiting += [(False, write_on, *case) for case in WRITES if case[-1] is signal.SIGSTOP]
        self.begun: dict[tuple[Any, ...], Future[None]] = {}
        for case in waiting:
            self.begun[case] = pool.submit(self._on_a_pair, *case)

    def check(self, *case: Any) -> None:
        """Run a check, or wait for one that has begun; it begins with whether memory is replaced."""
        if case in self.begun:
            self.begun[case].result(LIMIT)
        else:
            self._on_a_pair(*case)

    def _on_a_pair(self, replaceable: bool, check: Callable[..., None], *arguments: Any) -> None:
        with self._pair(replaceable) as pair:
            check(pair, *arguments)

    @contextmanager
    def _pair(self, replaceable: bool) -> Iterator[Pair]:
        pair = self.free[replaceable].get(timeout=LIMIT)
        try:
            yield pair
        finally:
            for workers in pair.both_sides.values():
                if not workers.answers(1):
                    workers.restart(1)
            self.free[replaceable].put(pair)


@pytest.fixture(scope="module")
def faults(process_workers: Callable[..., Any]) -> Iterator[Faults]:
    messages, log = Messages(), logging.getLogger("twinkle.ray")
    *pairs, replaced = [Pair(process_workers, number, messages, number == PAIRS) for number in range(PAIRS + 1)]
    log.addHandler(messages)
    pool = ThreadPoolExecutor(PAIRS - 1)
    yield Faults(pairs, replaced, pool)
    pool.shutdown(cancel_futures=True)
    log.removeHandler(messages)


@pytest.mark.parametrize(("transport", "side", "step", "how"), FAULTS)
def test_a_fault_at_any_step(faults: Faults, transport: str, side: str, step: str, how: signal.Signals | None) -> None:
    faults.check(False, suffer, transport, side, step, how)


@pytest.mark.parametrize("how", [signal.SIGKILL, None])
@pytest.mark.parametrize(("transport", "side", "step"), REPLACED)
def test_a_fault_where_memory_is_replaced(
    faults: Faults, transport: str, side: str, step: str, how: signal.Signals | None
) -> None:
    faults.check(True, suffer, transport, side, step, how)


@pytest.mark.parametrize(("transport", "step", "how"), WRITES)
def test_a_fault_in_the_write_of_what_has_arrived_everywhere(
    faults: Faults, transport: str, step: str, how: signal.Signals | None
) -> None:
    faults.check(False, write_on, transport, step, how)


@pytest.mark.parametrize("step", GOING_ON)
def test_a_stopped_target_that_goes_on_keeps_its_old_weights_too(faults: Faults, step: str) -> None:
    faults.check(False, go_on, "gloo", step)


def test_a_stopped_target_whose_memory_was_replaced_gets_it_back(faults: Faults) -> None:
    faults.check(True, go_on, "shared", "write")
