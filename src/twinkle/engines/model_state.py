"""A divided model's state as files of torch's distributed checkpoint, which a model on another mesh reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

if TYPE_CHECKING:
    from os import PathLike

    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

SMALL = "small.pt"


def write_state(
    folder: str | PathLike[str],
    model: Any,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
) -> None:
    """Write weights, the optimizer's state, the schedule and torch's generator; all ranks call this."""
    path = Path(folder)
    save(_sharded(model, optimizer), checkpoint_id=path)
    if dist.get_rank() == 0:
        small = {"generator": torch.get_rng_state(), "schedule": None if schedule is None else schedule.state_dict()}
        torch.save(small, path / SMALL)
    dist.barrier()


def read_state(
    folder: str | PathLike[str],
    model: Any,
    optimizer: Optimizer,
    schedule: LRScheduler | None,
) -> None:
    """Read what `write_state` wrote into a model with the same parameters, on any mesh; all ranks call this.

    Raises:
        ValueError: The one has a schedule, and the other has none.
    """
    path = Path(folder)
    small = torch.load(path / SMALL, weights_only=True)
    if (small["schedule"] is None) != (schedule is None):
        have = ["no schedule", "a schedule"]
        raise ValueError(
            f"the checkpoint has {have[small['schedule'] is not None]}, but this model {have[schedule is not None]}; "
            "the same schedule= as when it was written would do"
        )
    state = _sharded(model, optimizer)
    load(state, checkpoint_id=path)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_options(model),
    )
    if schedule is not None:
        schedule.load_state_dict(small["schedule"])
    torch.set_rng_state(small["generator"])


def _options(model: Any) -> StateDictOptions:
    adapters = hasattr(model, "peft_config")  # the frozen parameters are those of the model that was given
    return StateDictOptions(ignore_frozen_params=adapters, strict=not adapters)


def _sharded(model: Any, optimizer: Optimizer) -> dict[str, Any]:
    weights, state = get_state_dict(model, optimizer, options=_options(model))
    if hasattr(model, "peft_config"):  # torch leaves a frozen parameter in under its second name
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        weights = {name: weight for name, weight in weights.items() if name in trained}
    return {"model": weights, "optimizer": state}
