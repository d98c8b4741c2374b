"""Trains tiny models in each layout (dp x fsdp x tp), then on two ranks of which one fails: `run_training.py folder`.

The processes are forked from one that has the libraries loaded, which would take each of them seconds of a core.
"""

import json
import logging
import multiprocessing
import os
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from tiny_models import CONFIGS, LORA, Build, adamw, halving, logprobs_of, ragged, sgd
from torch.distributed.tensor import DTensor

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import Rollouts, TransformersModel

Program: TypeAlias = Callable[[Path, DeviceMesh], None]


@dataclass(frozen=True)
class Case:
    """What is trained, and how.

    Attributes:
        optimizer: Makes the optimizer.
        normalize: As for `forward_backward`.
        max_grad_norm: As for the model.
        options: Further options of the model.
    """

    family: str
    optimizer: Any
    normalize: Any = "token"
    max_grad_norm: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lora(self) -> bool:
        return "lora" in self.options


ROWS, TOKENS = {"micro_batch_size": 2}, {"max_tokens": 16}
CASES = {
    "llama-sgd": Case("llama", sgd, options=ROWS),
    "qwen2-adamw-packed": Case("qwen2", adamw, "sequence", options=TOKENS),
    "qwen3-sgd": Case("qwen3", sgd, "sequence", options={**ROWS, "gradient_checkpointing": True}),
    "llama-lora": Case("llama", adamw, max_grad_norm=0.5, options={**ROWS, "lora": LORA}),
    "qwen3-moe": Case("qwen3-moe", adamw, max_grad_norm=0.5, options=ROWS),
    "qwen2-moe-packed": Case("qwen2-moe", sgd, options=TOKENS),
}

LAYOUTS = {
    "2x1x1": ("llama-sgd", "qwen3-sgd"),
    "2x2x1": ("qwen2-adamw-packed", "llama-lora", "qwen3-moe", "qwen2-moe-packed"),
    "1x2x2": ("llama-sgd", "qwen2-adamw-packed", "qwen3-sgd"),  # also over tp
}
"""The cases of each layout: each case is divided over data and over tensors."""


def batches() -> list[list[dict[str, torch.Tensor]]]:
    """For each step the batches that accumulate: of uneven sizes, one with fewer rows than data ranks."""
    return [[ragged(5, 1), ragged(3, 2, "left")], [ragged(7, 3)]]


def whole(weight: torch.Tensor) -> torch.Tensor:
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).clone()


def run_case(name: str, mesh: DeviceMesh, folder: Path) -> None:
    case = CASES[name]
    build = Build(case.family)

    def seeded() -> Any:  # adapters are drawn after the model, by the generators that the session has seeded
        model = build()
        torch.manual_seed(6)
        return model

    model = TransformersModel(
        seeded if case.lora else build,
        optimizer=case.optimizer,
        schedule=halving,
        max_grad_norm=case.max_grad_norm,
        device_mesh=mesh,
        remote_group="trainer",
        **case.options,
    )
    figures = []
    for step in batches():
        losses = [model.forward_backward(batch, normalize=case.normalize)["loss"] for batch in step]
        told = model.step()
        figures.append((losses, told["grad_norm"], told["lr"]))
    logprobs = list(logprobs_of(model, ragged(6, 4, "left")))
    weights = {key: whole(weight) for key, weight in model.weights().items()}
    model.save_pretrained(folder / f"{name}-model")
    torch.save((figures, logprobs, weights), folder / f"{name}-{dist.get_rank()}.pt")


def train_all(folder: Path, mesh: DeviceMesh) -> None:
    layout = "x".join(str(mesh.size(dim)) for dim in ("dp", "fsdp", "tp"))
    own = folder / layout
    own.mkdir(exist_ok=True)
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        for name in LAYOUTS[layout]:
            run_case(name, mesh, own)
        torch.manual_seed(dist.get_rank())  # what a rank has drawn before does not part the models that all build
        TransformersModel(CONFIGS["llama"], optimizer=sgd, device_mesh=mesh, remote_group="trainer")
        try:
            TransformersModel(Build("llama", dist.get_rank()), optimizer=sgd, device_mesh=mesh, remote_group="trainer")
        except ValueError as error:
            (own / f"unlike-{dist.get_rank()}.txt").write_text(str(error))


UNEQUAL = Rollouts([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1] * 20])  # the last two are those of the second rank


def failing(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    if dist.get_rank() == 1:
        raise KeyError("not on this rank")
    return -logprobs


def fail_and_go_on(folder: Path, mesh: DeviceMesh) -> None:
    """Let one of two ranks fail at its part of a batch, and train on the next one."""
    told = []
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        cases: list[tuple[Any, dict[str, Any]]] = [("cross_entropy", {"max_tokens": 16}), (failing, {})]
        for loss, options in cases:
            model = TransformersModel(
                Build("llama"), optimizer=sgd, device_mesh=mesh, remote_group="trainer", **options
            )
            try:
                model.forward_backward(UNEQUAL, loss)
            except (ValueError, KeyError) as error:
                told.append(str(error))
            told.append(str([model.forward_backward(ragged(4, 1))["loss"], model.step()["grad_norm"]]))
    (folder / f"failing-{dist.get_rank()}.json").write_text(json.dumps(told))


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


def start_ranks(folder: Path, layout: str, program: Program) -> list[ForkProcess]:
    """Start a program on the ranks of a layout."""
    sizes, port = tuple(map(int, layout.split("x"))), free_port()
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=run_rank, args=(i, folder, sizes, port, program)) for i in range(prod(sizes))]
    for process in ranks:
        process.start()
    return ranks


def run_layouts(folder: Path, layouts: list[str], program: Program) -> None:
    """Run a program on the ranks of each layout, one layout after the other."""
    for layout in layouts:
        ranks = start_ranks(folder, layout, program)
        for process in ranks:
            process.join()
        if any(process.exitcode for process in ranks):
            sys.exit(f"{layout}: exit codes {[process.exitcode for process in ranks]}")


if __name__ == "__main__":
    run_layouts(Path(sys.argv[1]), list(LAYOUTS), train_all)
    run_layouts(Path(sys.argv[1]), ["2x1x1"], fail_and_go_on)
