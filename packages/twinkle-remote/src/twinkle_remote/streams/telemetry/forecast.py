"""The forecast of a stream: a simulation of its schedule with durations that are given or were measured."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from twinkle_remote.streams.schedule.simulated.load import Load
from twinkle_remote.streams.schedule.simulated.simulation import simulate
from twinkle_remote.streams.telemetry.stream_stats import StageStats, StreamStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from twinkle_remote.streams.options import StreamRules
    from twinkle_remote.streams.schedule.simulated.load import SimulatedRun
    from twinkle_remote.streams.telemetry.stream_record import StreamRecord

_ROWS = 4096  # rows of a run for which nothing was measured
_RUNS = 5  # orders of given durations, of which the one with the median throughput is reported


def forecast(
    record: StreamRecord,
    rules: StreamRules,
    durations: Mapping[str, Sequence[float]] | None,
    training: float | None,
    rows: int | None,
) -> StreamStats:
    """The metrics of a simulated run; see `Stream.explain`."""
    places = record.places
    known = [record.taken[i] if durations is None else durations.get(place.name) for i, place in enumerate(places)]
    missing = [place.name for place, seconds in zip(places, known, strict=True) if not seconds]
    if missing:
        raise ValueError(f"no durations of {', '.join(missing)}: give explain(durations={{name: seconds}})")
    pools = [place.data_ranks for _, place in sorted({place.pool: place for place in places}.items())]
    stages, widths = [place.pool for place in places], [place.width for place in places]
    loads = _loads(record, durations, training, rows)
    intakes = [place.intake for place in places]
    all_runs = (simulate(rules, pools, stages, load, widths, intakes) for load in loads)
    runs = sorted(all_runs, key=lambda run: run.rows_per_second)
    return _stats_of(runs[len(runs) // 2], record)


def _loads(
    record: StreamRecord, durations: Mapping[str, Sequence[float]] | None, training: float | None, rows: int | None
) -> Iterator[Load]:
    """The loads that were measured, again; or given durations in several orders."""
    steps = [(step.ended - step.began) / step.rows for step in record.steps] if training is None else [training]
    for seed in range(1 if durations is None else _RUNS):
        choose = Random(seed)
        if durations is None:
            seconds = [_by_row(taken) for taken in record.taken]
            rows = rows or max(map(len, seconds))
        else:
            rows = rows or _ROWS
            seconds = [spread(durations[place.name], rows, choose) for place in record.places]
        yield Load(
            _by_stage(seconds),
            steps or [0.0],
            rows,
            read=round(record.read_rows / record.reads) if record.reads else None,
            reading=record.reading / record.reads if record.reads else 0.0,
            versions=record.versions / record.batches if record.batches else 1.0,
        )


def spread(seconds: Sequence[float], rows: int, choose: Random) -> list[float]:
    """Durations of rows with the distribution of those that are given, in a random order.

    They are taken at even distances from the sorted ones: their mean and their longest do not hang on luck.

    Args:
        seconds: At least one.
        rows: How many are wanted.
        choose: Makes the order.
    """
    ascending = sorted(seconds)
    drawn = [ascending[(2 * place + 1) * len(ascending) // (2 * rows)] for place in range(rows)]
    choose.shuffle(drawn)
    return drawn


def _by_row(taken: Iterable[tuple[int, int, float]]) -> list[float]:
    """The seconds of each row, in the order of the source; the rows of a chunk have the same."""
    latest = {first: (rows, seconds) for first, rows, seconds in taken}  # a row may have been made twice
    return [seconds / rows for _, (rows, seconds) in sorted(latest.items()) for _ in range(rows)]


def _by_stage(drawn: Sequence[Sequence[float]]) -> Callable[[int, int], float]:
    return lambda row, stage: drawn[stage][row % len(drawn[stage])]


def _stats_of(run: SimulatedRun, record: StreamRecord) -> StreamStats:
    stages = {}
    for index, place in enumerate(record.places):
        made, busy = run.made[index], run.busy[index]
        mean = run.worked[index] / made if made else 0.0
        stages[place.name] = StageStats(place.data_ranks, made, busy, run.waiting[index], mean)
    return StreamStats(
        run.rows,
        run.seconds,
        run.batches,
        run.versions,
        stages,
        run.training,
        max(0.0, 1.0 - run.training - run.reading),
        run.reading,
        run.lag,
        run.redone,
        run.dropped,
    )
