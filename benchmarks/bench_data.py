"""The order of samples and the whole loader, against torch's own, in one run.

    python benchmarks/bench_data.py [--sizes 10000000 100000000] [--repeats 5] [--skip-loader]

The order: one rank of eight, global batches of 256. Each figure is measured in a new process; its peak memory counts
from the end of its imports. torchdata's StatefulDataLoader is measured too where it is installed.

The loader: rows of 512 token ids of a dataset object, default collate, shuffled, in this process and with two loader
processes. The runs take turns, and each ratio is the median of the ratios to the torch run next to it. On a busy
machine trust the ratio of CPU times, which includes the loader processes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

RANKS, BATCH = 8, 256
ASPECTS = {"first batch": "s", "resume at half": "s", "epoch": "s", "peak memory": "MB"}
AIMS = {"first batch": "50x", "resume at half": "50x"}


class Length:
    """A dataset with a length, whose samples are their indices."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


def torch_batches(length: int, resume: bool) -> Iterator[list[int]]:
    from torch.utils.data import BatchSampler, DistributedSampler

    sampler: Any = DistributedSampler(Length(length), RANKS, 3, shuffle=True, drop_last=True)  # type: ignore[arg-type]  # len() is all it uses
    batches = iter(BatchSampler(sampler, BATCH // RANKS, drop_last=True))
    # torch cannot go to a position: the batches before it are drawn and dropped.
    return islice(batches, length // BATCH // 2 if resume else 0, None)


def twinkle_batches(length: int, resume: bool) -> Iterator[list[int]]:
    from twinkle_data import DataLoader
    from twinkle_mesh import DeviceMesh, use_rank

    with use_rank(3):
        loader: Any = DataLoader(
            Length(length),
            batch_size=BATCH,
            shuffle=True,
            sample_seeds=False,
            device_mesh=DeviceMesh.from_sizes(dp_size=RANKS),
        )
        if resume:
            loader.load_state_dict({**loader.state_dict(), "position": length // BATCH // 2 * BATCH})
        yield from loader


def stateful_batches(length: int, resume: bool) -> Iterator[Any]:
    from torch.utils.data import BatchSampler

    package: Any = import_module("torchdata.stateful_dataloader")
    samplers: Any = import_module("torchdata.stateful_dataloader.sampler")
    sampler = samplers.StatefulDistributedSampler(Length(length), RANKS, 3, shuffle=True, drop_last=True)
    batches = BatchSampler(sampler, BATCH // RANKS, drop_last=True)
    loader = package.StatefulDataLoader(Length(length), batch_sampler=batches, collate_fn=list)
    return islice(iter(loader), length // BATCH // 2 if resume else 0, None)


SUBJECTS: dict[str, Callable[[int, bool], Iterator[Any]]] = {"torch": torch_batches, "twinkle": twinkle_batches}
if find_spec("torchdata"):
    SUBJECTS["torchdata"] = stateful_batches


def measure(subject: str, aspect: str, length: int) -> float:
    """Measure one figure in this process."""
    for module in (
        "torch.utils.data",
        "twinkle_data",
        *(["torchdata.stateful_dataloader"] * ("torchdata" in SUBJECTS)),
    ):
        import_module(module)  # imports do not count
    make = SUBJECTS[subject]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    batches = make(length, aspect == "resume at half")
    next(batches)
    if aspect in ("first batch", "resume at half"):
        return time.perf_counter() - begin
    if aspect == "epoch":
        for _ in batches:
            pass
    if aspect == "peak memory":
        for _ in islice(batches, 1000):
            pass
        return max((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024, 0.01)
    return time.perf_counter() - begin


def in_a_process(subject: str, aspect: str, length: int) -> float:
    command = [sys.executable, __file__, "--measure", subject, aspect, str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
    return float(json.loads(done.stdout))


def orders(sizes: list[int], repeats: int) -> None:
    for length in sizes:
        print(f"\norder of {length:,} samples, rank 3 of {RANKS}")
        print(f"{'':16}" + "".join(f"{subject:>14}" for subject in SUBJECTS) + f"{'torch/twinkle':>16}{'aim':>7}")
        for aspect, unit in ASPECTS.items():
            runs = repeats if length <= 10**7 else 1
            best = {subject: min(in_a_process(subject, aspect, length) for _ in range(runs)) for subject in SUBJECTS}
            row = "".join(f"{best[subject]:>11.4g} {unit:2}" for subject in SUBJECTS)
            print(f"{aspect:16}{row}{best['torch'] / best['twinkle']:>15.1f}x{AIMS.get(aspect, ''):>7}", flush=True)


class Tokens:
    """Rows of token ids.

    Args:
        rows: Number of rows of 512.
    """

    def __init__(self, rows: int) -> None:
        import torch

        self.ids = torch.randint(0, 32_000, (rows, 512))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Any:
        ids = self.ids[index]
        return {"input_ids": ids, "labels": ids.clone()}


def loaders(repeats: int) -> None:
    import torch
    from torch.utils.data import DataLoader as TorchLoader
    from torch.utils.data import default_collate

    from twinkle_data import DataLoader

    torch.set_num_threads(1)
    data: Any = Tokens(16_384)
    print("\nwhole loader, 16,384 rows of 512 token ids in batches of 64")
    print(f"{'':42}{'samples/s':>9}{'by wall':>10}{'by CPU time':>13}")
    for workers in (0, 2):
        ours: Callable[..., Any] = partial(
            DataLoader, data, batch_size=64, shuffle=True, num_workers=workers, collate_fn=default_collate
        )
        makers: dict[str, Callable[[], Any]] = {
            "torch": partial(TorchLoader, data, 64, shuffle=True, num_workers=workers),
            "twinkle": ours,
            "twinkle, sample_seeds=False": partial(ours, sample_seeds=False),
        }
        walls: dict[str, list[float]] = {name: [] for name in makers}
        busy: dict[str, list[float]] = {name: [] for name in makers}
        for _ in range(repeats):
            for name, make in makers.items():
                before, begin = sum(os.times()[:4]), time.perf_counter()
                for _ in make():
                    pass
                walls[name].append(time.perf_counter() - begin)
                busy[name].append(sum(os.times()[:4]) - before)
        for name in makers:
            wall, cpu = _ratio(walls["torch"], walls[name]), _ratio(busy["torch"], busy[name])
            rate = len(data) / statistics.median(walls[name])
            print(f"num_workers={workers}  {name:28}{rate:>10.0f}{wall:>8.2f}x{cpu:>12.2f}x", flush=True)


def _ratio(theirs: list[float], ours: list[float]) -> float:
    return statistics.median(their / our for their, our in zip(theirs, ours, strict=True))


def main() -> None:
    """Print every figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**7, 10**8])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--skip-loader", action="store_true")
    parser.add_argument("--measure", nargs=3, metavar=("SUBJECT", "ASPECT", "LENGTH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        subject, aspect, length = options.measure
        print(json.dumps(measure(subject, aspect, int(length))))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    orders(options.sizes, options.repeats)
    if not options.skip_loader:
        loaders(options.repeats)


if __name__ == "__main__":
    main()
