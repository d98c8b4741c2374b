"""Streams over sleeping samplers, against the best possible under the same rule and against the synchronous loop.

    python benchmarks/bench_streams.py [--median 0.1] [--batches 120] [--skip-run] [--engines ray]

The load: 64 data ranks in threads, batches of 32 rows, durations lognormal with sigma 1 and at most 20 medians, a loop
that trains as long as all ranks need for a batch. The best possible is a simulation of the same schedule with the same
durations and no overhead (`simulated_stream.py`). The table of rules is simulated; docs/streams.md shows it. The
bookkeeping is measured on the schedule alone: 64 data ranks that run 128 calls each.

`--engines ray` (or threads) measures engines that compute, and nothing else: one sampler and one trainer, a stream with
default options against the synchronous loop in one session, for answers of constant, uniform and lognormal lengths. The
engines are `TransformersSampler`, which writes a call's answers together until the longest one ends, and one of asyncio
that batches continuously.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import statistics
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from simulated_stream import SimulatedRun, simulate

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import StreamStats, get, on, remote_class, remote_function, session, stream
from twinkle_remote.streams.schedule import Rules, Schedule, StageCall, StageRule

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SLOTS, BATCH, CAP = 64, 32, 20.0
RULES: Sequence[tuple[str, dict[str, Any], Sequence[int | None]]] = (
    ("`ahead=0`", {"ahead": 0}, (None,)),
    ("`ahead=1`", {"ahead": 1}, (None,)),
    ('arrival, `"use"`', {"order": "arrival", "stale": "use"}, (1, 2, 4)),
    ("source", {"order": "source"}, (1, 2, 4, 8)),
    ('arrival, `"drop"`', {"order": "arrival", "stale": "drop"}, (1, 2, 4)),
)
"""A name, its options, and the values of `max_lag`."""


@remote_class()
class Sleeper:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def sleep(self, seconds: list[float]) -> list[float]:
        time.sleep(sum(seconds))
        return [time.time()] * len(seconds)


def drawn(rows: int, median: float) -> list[float]:
    draw = random.Random(0)
    return [median * min(CAP, draw.lognormvariate(0.0, 1.0)) for _ in range(rows)]


def simulated(rules: Rules, seconds: Sequence[float]) -> SimulatedRun:
    return simulate(rules, SLOTS, seconds, statistics.fmean(seconds) / SLOTS)


def table_of_rules() -> None:
    """Print the table of docs/streams.md."""
    seconds = drawn(400 * BATCH, 1.0)
    ideal = SLOTS / statistics.fmean(seconds)
    print("| rule | share | worst lag | dropped |\n|---|---|---|---|")
    for name, options, lags in RULES:
        rules = [Rules(rows=BATCH, max_lag=lag, **({"ahead": 10**6} | options)) for lag in lags]
        runs = [simulated(rule, seconds) for rule in rules]
        label = name if lags == (None,) else f"{name}, `max_lag` {' / '.join(map(str, lags))}"
        share = " / ".join(f"{run.rows_per_second / ideal:.2f}" for run in runs)
        worst = " / ".join(str(max(run.lag)) for run in runs)
        print(f"| {label} | {share} | {worst} | {percent([run.dropped for run in runs], seconds)}|", flush=True)


def percent(counts: Sequence[int], seconds: Sequence[float]) -> str:
    return " / ".join(f"{count / len(seconds):.0%}"[:-1] for count in counts) + " % " if any(counts) else ""


def real(sleeper: Sleeper, options: dict[str, Any], seconds: Sequence[float]) -> StreamStats:
    training = BATCH * statistics.fmean(seconds) / SLOTS
    source = [list(seconds[at : at + BATCH]) for at in range(0, len(seconds), BATCH)]
    with stream(source, sleeper.sleep, rows=BATCH, **options) as batches:
        for batch in batches:
            get(batch)
            time.sleep(training)
            batches.publish()
    return batches.stats()


def sleeping_samplers(median: float, batches: int) -> None:
    seconds = drawn(batches * BATCH, median)
    paced: dict[str, Any] = {"ahead": 10**6, "order": "arrival", "max_lag": 4}
    with session("threads", groups=[DeviceGroup("samplers", SLOTS, "CPU")]):
        sleeper = on("samplers", DeviceMesh.from_sizes(dp_size=SLOTS)).create(Sleeper)
        real(sleeper, paced, [0.001] * (4 * BATCH))  # threads are started, code is loaded
        streamed = real(sleeper, paced, seconds)
        print(f"\ncapacity pacing 4: {streamed}")
        best = simulated(Rules(rows=BATCH, **paced), seconds)
        share = streamed.rows_per_second / best.rows_per_second
        print(f"share of the best possible, {best.rows_per_second:.0f} rows/s: {share:.3f} (aim 0.95)")
        synchronous = real(sleeper, {"ahead": 0}, seconds)
        print(f"\nsynchronous: {synchronous}")
        ratio = streamed.rows_per_second / synchronous.rows_per_second
        theory = best.rows_per_second / simulated(Rules(rows=BATCH), seconds).rows_per_second
        print(f"\nstreamed against synchronous: {ratio:.1f}x (aim 8x; {theory:.1f}x without any overhead)")
        overhead(sleeper)
        print(f"a row in the loop's hands after its return: {1e3 * latency(sleeper):.2f} ms (aim 1 ms)\n")


def overhead(sleeper: Sleeper, rows: int = 8192) -> None:
    """Measure the cost of a row that takes no time: its call, its worker's thread, its way into a batch."""
    source = [[0.0] * BATCH] * (rows // BATCH)
    began, used = time.perf_counter(), time.process_time()
    with stream(source, sleeper.sleep, rows=BATCH, ahead=512, order="arrival") as batches:
        for _ in batches:
            pass
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"a row that takes no time: {1e6 * seconds / rows:.0f} us, {1e6 * cpu / rows:.0f} us of CPU")


def latency(sleeper: Sleeper) -> float:
    """Median seconds from a stage's return to the loop that waits for it, one row at a time."""
    with stream([[0.02] for _ in range(100)], sleeper.sleep, rows=1, ahead=1, order="arrival", max_lag=0) as batches:
        return statistics.median([time.time() - float(get(batch)[0]) for batch in batches])


def bookkeeping(ranks: int = 64, calls: int = 128) -> None:
    """Memory and time of a row in the schedule alone."""
    rows = ranks * calls
    gc.collect()
    tracemalloc.start()
    schedule = Schedule(Rules(rows=1024, ahead=rows, order="arrival"), [ranks], [StageRule(0, calls, many=False)])
    schedule.read(rows)
    at_work: list[StageCall] = []
    while begun := schedule.next_calls():
        at_work += begun
    held = tracemalloc.get_traced_memory()[0] / rows
    print(f"{len(at_work)} rows at work on {ranks} data ranks: {held:.0f} bytes a row")
    tracemalloc.stop()
    random.Random(0).shuffle(at_work)
    began = time.perf_counter()
    for call in at_work:
        schedule.over(call.stage, call.rank)
        schedule.made(call)
        schedule.next_calls()
    print(f"an event: {1e6 * (time.perf_counter() - began) / rows:.1f} us")


# engines that compute

LONGEST = 160
LENGTHS: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda draw: 40.0,
    "uniform": lambda draw: draw.uniform(1.0, 80.0),
    "lognormal": lambda draw: draw.lognormvariate(3.2, 1.0),
}
PROMPTS, WIDTH = 8, 256


def prompts_of(lengths: str, batches: int) -> list[list[list[int]]]:
    """Prompts of one token, the number of tokens of the answer, from which the model counts down."""
    draw = random.Random(0)
    drawn = [min(LONGEST, max(1, round(LENGTHS[lengths](draw)))) for _ in range(batches * PROMPTS)]
    return [[[tokens] for tokens in drawn[at : at + PROMPTS]] for at in range(0, len(drawn), PROMPTS)]


def countdown() -> Any:
    """A Qwen3 that writes the token below the last one, so that a prompt tells how long its answer is."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    class Countdown(Qwen3ForCausalLM):
        def forward(self, input_ids: Any = None, **inputs: Any) -> Any:
            made = super().forward(input_ids=input_ids, **inputs)
            below = (input_ids[:, -made.logits.shape[1] :] - 1).clamp(min=0)
            made.logits = made.logits + 100.0 * torch.nn.functional.one_hot(below, made.logits.shape[-1])
            return made

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    torch.manual_seed(0)
    return Countdown(Qwen3Config(vocab_size=LONGEST + 2, eos_token_id=0, **sizes, **heads))


@remote_class(concurrency=256)
class ContinuousEngine:
    """Writes a token to all answers that are at work in each step; answers come and go between two steps."""

    def __init__(self) -> None:
        import numpy

        self._weights = [numpy.full((WIDTH, WIDTH), 1 / WIDTH, numpy.float32) for _ in range(16)]
        self._left: dict[asyncio.Future[None], int] = {}
        self._steps: asyncio.Task[None] | None = None

    @remote_function(dispatch="slice_dp", split=("prompts",), collect="flatten")
    async def sample(self, prompts: list[list[int]]) -> list[list[int]]:
        answers = {asyncio.get_running_loop().create_future(): prompt[0] for prompt in prompts}
        self._left |= answers
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._write())
        await asyncio.gather(*answers)
        return prompts

    async def _write(self) -> None:
        import numpy

        while self._left:
            state = numpy.ones((len(self._left), WIDTH), numpy.float32)
            for weight in self._weights:
                state = state @ weight
            for answer in list(self._left):
                self._left[answer] -= 1
                if self._left[answer] <= 0:
                    del self._left[answer]
                    answer.set_result(None)
            await asyncio.sleep(0)


@remote_class()
class Trainer:
    """Works on a batch for as long as a model needs that has a tenth of what was written."""

    def __init__(self) -> None:
        import numpy

        self._weight = numpy.full((WIDTH, WIDTH), 1 / WIDTH, numpy.float32)

    @remote_function(dispatch="slice_dp", collect="none", sync=True)
    def learn(self, rows: Any, tokens: int) -> None:
        state = self._weight
        for _ in range(tokens):
            state = state @ self._weight


def through(source: Any, stage: Any, trainer: Trainer, **options: Any) -> float:
    """Seconds of a loop over a stage, from its first batch on."""
    rows, began = 0, time.perf_counter()
    with stream(source, stage, **options) as batches:
        for prompts, batch in zip(source, batches, strict=True):
            trainer.learn(batch, sum(tokens for (tokens,) in prompts) // 4)
            rows += len(prompts)
            batches.publish()
    assert rows == sum(map(len, source))
    return time.perf_counter() - began


def computing_engines(mode: str, batches: int = 6, runs: int = 3) -> None:
    """Print the rate of streams with default options against that of the synchronous loop, run in turn."""
    from twinkle_engines.samplers.components import TransformersSampler
    from twinkle_engines.samplers.sampler import SamplingParams

    groups = [DeviceGroup("sampler", 1, "CPU"), DeviceGroup("trainer", 1, "CPU")]
    one = DeviceMesh.from_sizes(dp_size=1)
    drawing = SamplingParams(n=1, max_new_tokens=LONGEST, temperature=0.0)
    with session(mode, groups=groups):
        engines: dict[str, Any] = {
            "TransformersSampler": TransformersSampler(
                countdown, params=drawing, device_mesh=one, remote_group="sampler"
            ).sample,
            "continuous": on("sampler", one).create(ContinuousEngine).sample,
        }
        trainer = on("trainer", one).create(Trainer)
        print(f'| engine, {mode} | lengths | synchronous, rows/s | `ahead=32` | and `order="arrival"` |')
        print("|---|---|---|---|---|")
        for name, stage in engines.items():
            for lengths in LENGTHS:
                source = prompts_of(lengths, batches)
                ways: list[dict[str, Any]] = [{}, {"ahead": 32}, {"ahead": 32, "order": "arrival"}]
                through(source[:2], stage, trainer, ahead=4)
                taken = [[through(source, stage, trainer, **way) for way in ways] for _ in range(runs)]
                ratios = [statistics.median(run[0] / run[way] for run in taken) for way in range(1, len(ways))]
                rate = batches * PROMPTS / statistics.median(run[0] for run in taken)
                shown = " | ".join(f"{ratio:.2f}" for ratio in ratios)
                print(f"| {name} | {lengths} | {rate:.1f} | {shown} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--median", type=float, default=0.1, help="seconds of the median row")
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--skip-run", action="store_true", help="only the simulation and the bookkeeping")
    parser.add_argument("--engines", choices=("ray", "threads"), help="only engines that compute, in this mode")
    options = parser.parse_args()
    if options.engines:
        computing_engines(options.engines)
        return
    table_of_rules()
    if not options.skip_run:
        sleeping_samplers(options.median, options.batches)
    bookkeeping()


if __name__ == "__main__":
    main()
