"""Trains on two ranks of which one fails at its part of a batch, in real processes: `run_failing.py folder`."""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from run_training import run_layouts
from tiny_models import Build, ragged, sgd

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import Rollouts, TransformersModel

BATCH = Rollouts([[1, 2, 3], [4, 5, 6], [7, 8, 9], [1] * 20])  # the last two are those of the second rank


def failing(logprobs: torch.Tensor, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    if dist.get_rank() == 1:
        raise KeyError("not on this rank")
    return -logprobs


def fail_and_go_on(folder: Path, mesh: DeviceMesh) -> None:
    told = []
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        cases: list[tuple[Any, dict[str, Any]]] = [("cross_entropy", {"max_tokens": 16}), (failing, {})]
        for loss, options in cases:
            model = TransformersModel(
                Build("llama"), optimizer=sgd, device_mesh=mesh, remote_group="trainer", **options
            )
            try:
                model.forward_backward(BATCH, loss)
            except (ValueError, KeyError) as error:
                told.append(str(error))
            told.append(str([model.forward_backward(ragged(4, 1))["loss"], model.step()["grad_norm"]]))
    (folder / f"failing-{dist.get_rank()}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    run_layouts(Path(sys.argv[1]), ["2x1x1"], fail_and_go_on)
