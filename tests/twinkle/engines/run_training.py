"""Trains tiny models in each layout (dp x fsdp x tp), in real processes: `run_training.py folder 2x2x1 1x2x2`.

The processes are forked from one that has the libraries loaded, which would take each of them seconds of a core.
"""

import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from tiny_models import Build, adamw, halving, ragged, sgd
from torch.distributed.tensor import DTensor

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import TransformersModel

Program: TypeAlias = Callable[[Path, DeviceMesh], None]
CASES: dict[str, tuple[str, Any, float | None, Any]] = {
    "llama-sgd": ("llama", sgd, None, "token"),
    "qwen2-sgd": ("qwen2", sgd, None, "token"),
    "qwen3-sgd": ("qwen3", sgd, None, "sequence"),
    "llama-adamw": ("llama", adamw, 0.5, "token"),
    "qwen2-adamw": ("qwen2", adamw, None, "sequence"),
}


def batches() -> list[list[dict[str, torch.Tensor]]]:
    """For each step the batches that accumulate: of uneven sizes, one with fewer rows than data ranks."""
    return [[ragged(5, 1), ragged(3, 2, "left")], [ragged(7, 3)]]


def whole(weight: torch.Tensor) -> torch.Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).clone()


def run_case(name: str, mesh: DeviceMesh, folder: Path) -> None:
    family, optimizer, limit, normalize = CASES[name]
    model = TransformersModel(
        Build(family),
        optimizer=optimizer,
        schedule=halving,
        max_grad_norm=limit,
        micro_batch_size=2,
        device_mesh=mesh,
        remote_group="trainer",
    )
    figures = []
    for step in batches():
        losses = [model.forward_backward(batch, normalize=normalize)["loss"] for batch in step]
        told = model.step()
        figures.append((losses, told["grad_norm"], told["lr"]))
    logprobs = list(model.logprobs(ragged(6, 4, "left")))
    weights = {key: whole(weight) for key, weight in model.weights().items()}
    model.save_pretrained(folder / f"{name}-model")
    torch.save((figures, logprobs, weights), folder / f"{name}-{dist.get_rank()}.pt")


def train_all(folder: Path, mesh: DeviceMesh) -> None:
    own = folder / "x".join(str(mesh.size(dim)) for dim in ("dp", "fsdp", "tp"))
    own.mkdir(exist_ok=True)
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        for name in CASES:
            run_case(name, mesh, own)


def run_rank(rank: int, folder: Path, sizes: tuple[int, ...], port: int, program: Program) -> None:
    torch.set_num_threads(1)
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(prod(sizes))}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dp, fsdp, tp = sizes
    program(folder, DeviceMesh.from_sizes(dp_size=dp, fsdp_size=fsdp, tp_size=tp, device_type="cpu"))
    dist.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_layouts(folder: Path, layouts: list[str], program: Program) -> None:
    """Run a program on the ranks of each layout, one layout after the other."""
    fork = multiprocessing.get_context("fork")
    for layout in layouts:
        sizes = tuple(map(int, layout.split("x")))
        port = free_port()
        ranks = [fork.Process(target=run_rank, args=(i, folder, sizes, port, program)) for i in range(prod(sizes))]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{layout}: exit codes {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    run_layouts(Path(sys.argv[1]), sys.argv[2:], train_all)
