"""A divided model's state as files of torch's distributed checkpoint, which a model on another mesh reads."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from twinkle_engines.checkpoints.agreed import agreed, torch_checkpoint
from twinkle_engines.checkpoints.checkpoint_facts import FACTS, check_state, plain
from twinkle_engines.checkpoints.checkpoint_facts import facts as _facts
from twinkle_engines.checkpoints.file_digests import check_digests, write_digests

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from twinkle_engines.parallel.model_layout import ModelLayout

SCHEDULE = "schedule.pt"


def write_state(
    folder: str | PathLike[str],
    model: Any,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    layout: ModelLayout,
) -> None:
    """Write weights, the optimizer's state, the schedule, and generators by data rank; all ranks call this.

    Raises:
        Exception: A rank cannot write; all ranks raise.
    """
    path = Path(folder)
    has_stepped = bool(optimizer.state)
    state = _sharded(model, optimizer)
    if not has_stepped:  # torch has made it a state, by a step with gradients of 0
        optimizer.state.clear()
        del state["optimizer"]["state"]
    with torch_checkpoint(f"writing the checkpoint {path}"):
        save(state, checkpoint_id=path)
    with agreed(f"writing the checkpoint {path}"):
        if dist.get_rank() == 0:
            torch.save(None if schedule is None else plain(schedule.state_dict()), path / SCHEDULE)
            (path / FACTS).write_text(json.dumps(_facts(state, optimizer)), encoding="utf-8")
        if layout.mesh.get_local_rank("tp") == 0:
            torch.save(_generator_states(layout.device), _generators(path, layout.data_rank, layout.data_world_size))
    write_digests(path)


def read_state(
    folder: str | PathLike[str],
    model: Any,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
    layout: ModelLayout,
    check: Callable[[Path], None] = lambda path: None,
) -> None:
    """Read what `write_state` wrote into a model with the same parameters, on any mesh; all ranks call this.

    Generators go on where there are as many data ranks as there were; else all ranks take those of the first.

    Args:
        folder: The folder.
        model: The model.
        optimizer: Its optimizer.
        schedule: Its schedule, or None.
        layout: Its layout.
        check: Raises ValueError for a folder that is not to be read into the model.

    Raises:
        ValueError: The checkpoint is of another model, optimizer or schedule; nothing has changed then.
        RuntimeError: The files cannot be read.
    """
    path = Path(folder)
    with agreed("reading the checkpoint"):
        check_digests(path)
    with agreed("reading the checkpoint"):
        rates = torch.load(path / SCHEDULE, weights_only=True)
        check(path)
        _check_schedule(rates, schedule)
        states = _generators(path, layout.data_rank, layout.data_world_size)
        generators = torch.load(states if states.exists() else min(path.glob("generators-*.pt")), weights_only=True)
    before = dict(optimizer.state)
    optimizer.state.clear()  # torch then makes one for every parameter
    try:
        state = _sharded(model, optimizer)
        with agreed("reading the checkpoint"):
            check_state(path, state, optimizer)
    except BaseException:
        optimizer.state.clear()
        optimizer.state.update(before)
        raise
    with torch_checkpoint("reading the checkpoint"):
        without = _load(state, path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_options(model),
    )
    for names, group in zip(state["optimizer"]["param_groups"], optimizer.param_groups, strict=True):
        for name, parameter in zip(names["params"], group["params"], strict=True):
            if name in without:
                del optimizer.state[parameter]
    if schedule is not None:
        schedule.load_state_dict(rates)
    _set_generators(generators, layout.device)


def _check_schedule(rates: Any, schedule: LRScheduler | None) -> None:
    if (rates is None) != (schedule is None):
        have = ["no schedule", "a schedule"]
        raise ValueError(
            f"the checkpoint has {have[rates is not None]}, but this model {have[schedule is not None]}: use the same "
            "schedule= as when it was written"
        )


def _load(state: dict[str, Any], path: Path) -> set[str]:
    """Read a checkpoint into a state, and return the parameters of which it has no state of the optimizer.

    A parameter has one from the first step on in which it has a gradient.
    """
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    every = state["optimizer"]["state"]
    held = {name: own for name, own in every.items() if any(f"optimizer.state.{name}.{key}" in saved for key in own)}
    groups = {"param_groups": state["optimizer"]["param_groups"]}
    load({"model": state["model"], "optimizer": {**groups, "state": held} if held else groups}, checkpoint_id=path)
    return {*every} - {*held}


def _generators(path: Path, data_rank: int, data_world_size: int) -> Path:
    return path / f"generators-{data_rank:05d}-of-{data_world_size:05d}.pt"


def _generator_states(device: torch.device) -> dict[str, Any]:
    """The states of the global generators of Python, numpy, torch and the device, in numbers, texts and tensors."""
    kind, key, *rest = np.random.get_state(legacy=True)
    states = {
        "python": random.getstate(),
        "numpy": [kind, torch.from_numpy(np.array(key, dtype=np.int64)), *rest],
        "torch": torch.get_rng_state(),
    }
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Go on from some states; a device of another kind than theirs keeps its own."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, key, *rest = states["numpy"]
    np.random.set_state((kind, key.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(states["torch"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)


def _options(model: Any) -> StateDictOptions:
    adapters = hasattr(model, "peft_config")  # the frozen parameters are those of the model that was given
    return StateDictOptions(ignore_frozen_params=adapters, strict=not adapters)


def _sharded(model: Any, optimizer: Optimizer) -> dict[str, Any]:
    weights, state = get_state_dict(model, optimizer, options=_options(model))
    state["param_groups"] = plain(state["param_groups"])
    if hasattr(model, "peft_config"):  # torch leaves a frozen parameter in under its second name
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        weights = {name: weight for name, weight in weights.items() if name in trained}
    return {"model": weights, "optimizer": state}
