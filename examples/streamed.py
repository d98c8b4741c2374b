"""The same loop, synchronous and as a stream, with samplers that need much longer for some rows than for others.

python examples/streamed.py                                    # 32 samplers in threads
python examples/streamed.py --mode ray --samplers 4 --rows 4   # the same program on a Ray cluster
python examples/streamed.py --out out                          # with the times of rows, and a picture of them
"""

from __future__ import annotations

import argparse
import json
import random
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draw_schedules import draw_schedules
from libraries import without

import twinkle
from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMED: dict[str, Any] = {"ahead": 10_000, "order": "arrival", "max_lag": 4}


@remote_class()
class Sampler:
    """Sleeps for as long as a model would need to write each answer."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, prompts: list[float]) -> list[tuple[int, float, float]]:
        made = []
        for seconds in prompts:
            began = time.time()
            time.sleep(seconds)
            made.append((twinkle.current_worker().rank or 0, began, time.time() - began))
        return made


def prompts_of(batches: int, rows: int, median: float) -> Sequence[list[float]]:
    """Seconds of each row: lognormal with sigma 1, at most 20 medians."""
    draw = random.Random(0)
    return [[median * min(20.0, draw.lognormvariate(0.0, 1.0)) for _ in range(rows)] for _ in range(batches)]


def run(name: str, prompts: Sequence[list[float]], sampler: Sampler, training: float, out: Path | None) -> float:
    """Train on all prompts; return the rows per second."""
    options = STREAMED if name == "streamed" else {}
    rows, steps = [], []  # for the picture: what each rank and the loop did, and with which version
    with twinkle.stream(prompts, sampler.sample, rows=len(prompts[0]), **options) as rollouts:
        for batch in rollouts:
            made, info, began = twinkle.get(batch), rollouts.info, time.time()
            time.sleep(training)
            if info is not None:
                rows += [(*row, version) for row, version in zip(made, info.begun, strict=True)]
            steps.append((began, time.time() - began, rollouts.version))
            rollouts.publish()  # a WeightSync would publish it by itself
    print(f"{name}: {rollouts.stats()}\n")
    if out is not None:
        (out / f"{name}.json").write_text(json.dumps({"rows": rows, "steps": steps}))
    return rollouts.stats().rows_per_second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("threads", "ray"), default="threads")
    parser.add_argument("--samplers", type=int, default=32)
    parser.add_argument("--rows", type=int, default=32, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--median", type=float, default=0.05, help="seconds of the median row")
    parser.add_argument("--out", type=Path, help="folder for the times of rows and steps, and a picture of them")
    options = parser.parse_args()
    if options.out is not None and find_spec("matplotlib") is None:
        parser.error(without("matplotlib"))
    prompts = prompts_of(options.batches, options.rows, options.median)
    training = sum(map(sum, prompts)) / options.samplers / len(prompts)  # as long as all samplers need for a batch
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with twinkle.session(options.mode, groups=[DeviceGroup("samplers", options.samplers, "CPU")]):
        sampler = twinkle.on("samplers", DeviceMesh.from_sizes(dp_size=options.samplers)).create(Sampler)
        rates = [run(name, prompts, sampler, training, options.out) for name in ("synchronous", "streamed")]
    print(f"streamed against synchronous: {rates[1] / rates[0]:.1f} times as fast")
    if options.out is not None:
        print(f"picture: {draw_schedules(options.out)}")


if __name__ == "__main__":
    main()
