"""Streams over sleeping samplers, against the best possible under the same rule and against the synchronous loop.

    python benchmarks/bench_streams.py [--median 0.1] [--batches 120] [--skip-run] [--engines ray]

The load: 64 data ranks in threads, batches of 32 rows, durations lognormal with sigma 1 and at most 20 medians, a loop
that trains as long as all ranks need for a batch. The best possible is a simulation of the same schedule with the same
durations and no overhead. What `explain` predicts from the durations alone stands next to what was shown. The table of
rules is simulated; docs/streams.md shows it. The bookkeeping is measured on the schedule alone: 8,192 simulated data
ranks with 10^6 rows at work.

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

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import StreamStats, get, on, remote_class, remote_function, session, stream
from twinkle_remote.streams.options import StreamRules
from twinkle_remote.streams.schedule.scheduler import Scheduler
from twinkle_remote.streams.schedule.simulated.load import Load, SimulatedRun
from twinkle_remote.streams.schedule.simulated.simulation import simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SLOTS, BATCH, CAP = 64, 32, 20.0
RULES: Sequence[tuple[str, dict[str, Any], Sequence[int | None]]] = (
    ("`ahead=0`", {"ahead": 0}, (None,)),
    ("`ahead=1`", {"ahead": 1}, (None,)),
    ('arrival, `"use"`', {"order": "arrival", "stale": "use"}, (1, 2, 4)),
    ("source", {"order": "source"}, (1, 2, 4, 8)),
    ('arrival, `"wait"`', {"order": "arrival", "stale": "wait"}, (1, 2, 4, 8)),
    ('arrival, `"redo"`', {"order": "arrival", "stale": "redo"}, (1, 2, 4)),
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


def simulated(rules: StreamRules, seconds: Sequence[float]) -> SimulatedRun:
    training = statistics.fmean(seconds) / SLOTS
    return simulate(rules, [SLOTS], [0], Load(lambda row, stage: seconds[row], [training], len(seconds)))


def table_of_rules() -> None:
    """Print the table of docs/streams.md."""
    seconds = drawn(400 * BATCH, 1.0)
    ideal = SLOTS / statistics.fmean(seconds)
    print("| rule | share | worst lag | made again | dropped |\n|---|---|---|---|---|")
    for name, options, lags in RULES:
        rules = [StreamRules(rows=BATCH, max_lag=lag, **({"ahead": 10**6} | options)) for lag in lags]
        runs = [simulated(rule, seconds) for rule in rules]
        label = name if lags == (None,) else f"{name}, `max_lag` {' / '.join(map(str, lags))}"
        share = " / ".join(f"{run.rows_per_second / ideal:.2f}" for run in runs)
        worst = " / ".join(str(run.worst_lag) for run in runs)
        waste = [percent([run.redone for run in runs], seconds), percent([run.dropped for run in runs], seconds)]
        print(f"| {label} | {share} | {worst} | {waste[0]}| {waste[1]}|", flush=True)


def percent(counts: Sequence[int], seconds: Sequence[float]) -> str:
    return " / ".join(f"{count / len(seconds):.0%}"[:-1] for count in counts) + " % " if any(counts) else ""


def real(sleeper: Sleeper, options: dict[str, Any], seconds: Sequence[float]) -> tuple[StreamStats, StreamStats]:
    """Return what `explain` predicted, and what was shown."""
    training = BATCH * statistics.fmean(seconds) / SLOTS
    source = [list(seconds[at : at + BATCH]) for at in range(0, len(seconds), BATCH)]
    with stream(source, sleeper.sleep, rows=BATCH, **options) as batches:
        predicted = batches.explain({"Sleeper.sleep": seconds}, training / BATCH, len(seconds))
        for batch in batches:
            get(batch)
            time.sleep(training)
            batches.publish()
    return predicted, batches.stats()


def sleeping_samplers(median: float, batches: int) -> None:
    seconds = drawn(batches * BATCH, median)
    paced: dict[str, Any] = {"ahead": 10**6, "order": "arrival", "max_lag": 4, "stale": "use"}
    with session("threads", groups=[DeviceGroup("samplers", SLOTS, "CPU")]):
        sleeper = on("samplers", DeviceMesh.from_sizes(dp_size=SLOTS)).create(Sleeper)
        real(sleeper, paced, [0.001] * (4 * BATCH))  # threads are started, code is loaded
        predicted, streamed = real(sleeper, paced, seconds)
        print(f"\ncapacity pacing 4: {streamed}")
        best = simulated(StreamRules(rows=BATCH, **paced), seconds)
        share = streamed.rows_per_second / best.rows_per_second
        print(f"share of the best possible, {best.rows_per_second:.0f} rows/s: {share:.3f} (aim 0.95)")
        compare(predicted, streamed)
        predicted, synchronous = real(sleeper, {"ahead": 0}, seconds)
        print(f"\nsynchronous: {synchronous}")
        compare(predicted, synchronous)
        ratio = streamed.rows_per_second / synchronous.rows_per_second
        theory = best.rows_per_second / simulated(StreamRules(rows=BATCH), seconds).rows_per_second
        print(f"\nstreamed against synchronous: {ratio:.1f}x (aim 8x; {theory:.1f}x without any overhead)")
        overhead(sleeper)
        print(f"a row in the loop's hands after its return: {1e3 * latency(sleeper):.2f} ms (aim 1 ms)\n")


def compare(predicted: StreamStats, shown: StreamStats) -> None:
    rate = predicted.rows_per_second / shown.rows_per_second
    lag = f", mean lag {predicted.mean_lag:.2f} ({predicted.mean_lag / shown.mean_lag:.3f})" if shown.mean_lag else ""
    print(f"explain predicted {predicted.rows_per_second:.1f} rows/s ({rate:.3f} of what was shown){lag}")


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
        return statistics.median(time.time() - get(batch)[0] for batch in batches)


def bookkeeping(ranks: int = 8192, at_once: int = 123, rows: int = 1_000_000) -> None:
    gc.collect()
    tracemalloc.start()
    rules = StreamRules(rows=1024, ahead=rows, order="arrival", max_lag=1000, stale="wait", at_once=at_once)
    schedule = Scheduler(rules, [ranks], [0])
    schedule.read(rows)
    chunks: list[int] = []
    began = time.perf_counter()
    while works := schedule.next_works():
        chunks += [work.number for work in works]
    given = time.perf_counter() - began
    held = tracemalloc.get_traced_memory()[0] - sum(map(int.__sizeof__, chunks)) - chunks.__sizeof__()
    print(f"{len(chunks)} rows at work on {ranks} data ranks: {held / rows:.0f} bytes a row")
    tracemalloc.stop()
    random.Random(0).shuffle(chunks)
    tracemalloc.start()
    began = time.perf_counter()
    for chunk in chunks:
        schedule.finished(chunk)
    finished = time.perf_counter() - began
    held += tracemalloc.get_traced_memory()[0]
    print(f"the same finished, by arrival and age: {held / rows:.0f} bytes a row (aim 200)")
    tracemalloc.stop()
    print(
        f"an event, with the tracing of memory: {1e6 * given / rows:.1f} us begun, {1e6 * finished / rows:.1f} us done"
    )


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
    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_engines.samplers.transformers_sampler import TransformersSampler

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
        print(f'| engine, {mode} | lengths | synchronous, rows/s | `ahead=32` | and `order="arrival"` | row by row |')
        print("|---|---|---|---|---|---|")
        for name, stage in engines.items():
            for lengths in LENGTHS:
                source = prompts_of(lengths, batches)
                ways: list[dict[str, Any]] = [{}, {"ahead": 32}, {"ahead": 32, "order": "arrival"}]
                ways.append({"ahead": 32, "chunk": 1, "at_once": 1})
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
