"""Time to plan a weight sync of a 1T-parameter model from 256 to 128 ranks, without any process.

    python benchmarks/bench_weight_plan.py [--profile] [--layers 61]

The model is a mixture of experts: 61 layers of 384 experts, hidden size 7168, expert size 2048, fused
expert weights. The source shards every tensor over 256 ranks (FSDP); the target shards experts over 128 ranks (expert
parallel), and the other tensors over 8 ranks (tensor parallel) with 16 replicas. The time is CPU time of one process.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from typing import TYPE_CHECKING

from torch.distributed.tensor import Replicate, Shard

from twinkle_ray.weights.manifest import MatchOptions
from twinkle_ray.weights.routes import compile_plan
from twinkle_ray.weights.shards import RankSpecs, TensorSpec, placed_boxes
from twinkle_ray.weights.state import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.boxes import Box
    from twinkle_ray.weights.state import Side

SOURCES, TARGETS, TENSOR_PARALLEL, PER_HOST = 256, 128, 8, 8
HIDDEN, EXPERT, EXPERTS, HEADS, HEAD = 7168, 2048, 384, 64, 128


def tensors(layers: int) -> dict[str, tuple[tuple[int, ...], int | None]]:
    """Shape of each tensor, and the dimension that tensor parallelism shards; "expert" tensors shard dimension 0."""
    vocabulary = (163840, HIDDEN)
    found: dict[str, tuple[tuple[int, ...], int | None]] = {"embed": (vocabulary, 0), "head": (vocabulary, 0)}
    for layer in range(layers):
        found |= {
            f"layers.{layer}.{name}": (shape, dim)
            for name, shape, dim in (
                ("norm", (HIDDEN,), None),
                ("q_a", (1536, HIDDEN), None),
                ("q_a_norm", (1536,), None),
                ("q_b", (HEADS * (HEAD + 64), 1536), 0),
                ("kv_a", (576, HIDDEN), None),
                ("kv_a_norm", (512,), None),
                ("kv_b", (HEADS * 2 * HEAD, 512), 0),
                ("o", (HIDDEN, HEADS * HEAD), 1),
                ("post_norm", (HIDDEN,), None),
                ("gate", (EXPERTS, HIDDEN), None),
                ("shared_up", (2 * EXPERT, HIDDEN), 0),
                ("shared_down", (HIDDEN, EXPERT), 1),
                ("experts_up", (EXPERTS, 2 * EXPERT, HIDDEN), 0),
                ("experts_down", (EXPERTS, HIDDEN, EXPERT), 0),
            )
        }
    return found


def source_specs(layers: int) -> list[RankSpecs]:
    """Specs of every source rank: each tensor sharded over all ranks."""
    return [
        tuple(
            _spec(name, shape, placed_boxes(shape, (SOURCES,), (rank,), [Shard(0)]))
            for name, (shape, _) in tensors(layers).items()
        )
        for rank in range(SOURCES)
    ]


def target_specs(layers: int) -> list[RankSpecs]:
    """Specs of every target rank: experts over all ranks, other tensors over `TENSOR_PARALLEL` of them."""
    mesh = (TARGETS // TENSOR_PARALLEL, TENSOR_PARALLEL)
    found: list[RankSpecs] = []
    for rank in range(TARGETS):
        mine: list[TensorSpec] = []
        for name, (shape, dim) in tensors(layers).items():
            if "experts" in name:
                boxes = placed_boxes(shape, (TARGETS,), (rank,), [Shard(0)])
            else:
                placements = [Replicate(), Replicate() if dim is None else Shard(dim)]
                boxes = placed_boxes(shape, mesh, divmod(rank, TENSOR_PARALLEL), placements)
            mine.append(_spec(name, shape, boxes))
        found.append(tuple(mine))
    return found


def _spec(name: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> TensorSpec:
    return TensorSpec(name, "bfloat16", shape, tuple(box for box in boxes if box.volume), name)


def reports(side: str, of_side: Sequence[RankSpecs]) -> dict[int, Report]:
    """One process for each rank, 8 to a host."""
    hosts = [f"{side}{rank // PER_HOST}" for rank in range(len(of_side))]
    return {
        rank: Report(f"{host}/{rank}", host, f"{side}{rank}", specs, "cpu")
        for rank, (host, specs) in enumerate(zip(hosts, of_side, strict=True))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    all_specs: dict[Side, list[RankSpecs]] = {
        "source": source_specs(options.layers),
        "target": target_specs(options.layers),
    }
    both = {side: reports(side, of_side) for side, of_side in all_specs.items()}
    needed = 2 * sum(box.volume for rank_specs in all_specs["target"] for spec in rank_specs for box in spec.boxes)
    profiler = cProfile.Profile(time.process_time)
    if options.profile:
        profiler.enable()
    began = time.process_time()
    compiled = compile_plan(both, MatchOptions(), None)
    planned = time.process_time()
    for side, of_side in both.items():
        for rank in of_side:
            compiled.part(side, rank)
    ended = time.process_time()
    if options.profile:
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
    moves = sum(len(transfer.moves) for transfer in compiled.plan.transfers)
    print(f"compile_plan={planned - began:.2f} s CPU  parts={ended - planned:.2f} s CPU  blocks={moves}")
    received = sum(transfer.nbytes * len(transfer.targets) for transfer in compiled.plan.transfers)
    print(f"bytes received / bytes needed = {received / needed:.2f}")


if __name__ == "__main__":
    main()
