"""A worker is killed or stopped at every step of a sync: a bounded error that names it, old weights, a next sync."""

from __future__ import annotations

import os
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor

from twinkle_ray.weights import Shard, WeightSync, WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.transport.gloo import GlooLink
from twinkle_ray.weights.worker import commit as commit_module
from twinkle_ray.weights.worker import endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.processes, pytest.mark.long]

ROWS, COLUMNS = 8, 300_000
SILENCE = 4.0
BOUND = 20.0


class Part:
    """One of two ranks: half of the rows of every tensor; at the target, half of the columns."""

    def __init__(self, side: str, rank: int) -> None:
        self.rank = rank
        self.versions: list[int] = []
        self.fault: Callable[[str], None] = lambda step: None
        shape, offset = (ROWS // 2, COLUMNS), (rank * ROWS // 2, 0)
        if side == "target":
            shape, offset = (ROWS, COLUMNS // 2), (0, rank * COLUMNS // 2)
        self.tensors = {name: Shard(torch.zeros(shape), (ROWS, COLUMNS), offset) for name in ("a", "b")}
        self.small = torch.zeros(3)

    def weights(self) -> dict[str, Shard | Tensor]:
        self.fault("describe")
        return {**self.tensors, "small": self.small}

    def on_weights(self, version: int) -> None:
        self.fault("on_weights")
        self.versions.append(version)


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


def before(function: Callable[..., Any], part: Part, step: str) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        part.fault(step)
        return function(*args, **kwargs)

    wrapped.__name__, wrapped.__qualname__ = function.__name__, function.__qualname__
    wrapped.__module__ = function.__module__
    return wrapped


class Pair:
    """Two sources and two targets that live through all faults of this file."""

    def __init__(self, process_workers: Callable[..., Any]) -> None:
        self.both_sides = {
            "source": process_workers("actor", Part, [("source", rank) for rank in range(2)]),
            "target": process_workers("sampler", Part, [("target", rank) for rank in range(2)]),
        }
        self.value = 0.0

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


@pytest.fixture(scope="module")
def both(process_workers: Callable[..., Any]) -> Pair:
    return Pair(process_workers)


@pytest.fixture
def pair(both: Pair) -> Iterator[Pair]:
    yield both
    for workers in both.both_sides.values():
        if not workers.answers(1):
            workers.restart(1)


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


@pytest.mark.parametrize(("transport", "side", "step", "how"), FAULTS)
def test_a_fault_at_any_step(
    pair: Pair, caplog: pytest.LogCaptureFixture, transport: str, side: str, step: str, how: signal.Signals | None
) -> None:
    limit = 4.0 if (step, how) == ("describe", signal.SIGSTOP) else 60.0
    sync = pair.synced(transport, timeout=limit)
    committed, before_fault = sync.version, pair.value
    if step == "prepare":
        sync._controller.forget()
    workers = pair.both_sides[side]
    workers.call(1, arm, step, how)
    pair.both_sides["source"].run(fill, before_fault + 0.5)
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
        assert f"version {committed + 1} of the weights is in place; at the step 'finalize'" in caplog.text
    elif how is None:
        assert f"{workers.name}[1/2]" in message and f"KeyError: 'broken at {step}'" in message
    elif how is signal.SIGKILL:
        assert f"{workers.name}[1/2] died" in message
    else:
        assert isinstance(caught.value, WeightSyncTimeoutError)
        who = f"{side} rank 1 \\(host .*, pid {workers.pids[1]}\\)"
        named = f"{who} showed no sign of life for {SILENCE:g} s: stopped, or stuck"
        assert re.search(named if step != "describe" else f"{workers.name}: ranks \\[1\\] are late", message)
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


@pytest.mark.parametrize("step", ["transfer", "commit", "write"])
def test_a_stopped_target_that_goes_on_keeps_its_old_weights_too(pair: Pair, step: str) -> None:
    sync = pair.synced("gloo", timeout=60.0)
    target = pair.both_sides["target"]
    target.call(1, arm, step, signal.SIGSTOP)
    pair.both_sides["source"].run(fill, pair.value + 0.5)
    with pytest.raises(WeightSyncTimeoutError):
        sync()
    target.signal(1, signal.SIGCONT)
    assert target.run(values) == [{pair.value}] * 2
    pair.again(sync)
    sync.close()
