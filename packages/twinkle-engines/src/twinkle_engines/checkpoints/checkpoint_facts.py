"""Facts of a checkpoint: what is compared with a model and its optimizer before anything of them is overwritten."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from torch.optim import Optimizer

FACTS = "facts.json"


def facts(state: Mapping[str, Any], optimizer: Optimizer) -> dict[str, Any]:
    """The optimizer's class, and the parameters of each of its groups."""
    kind = type(optimizer)
    return {
        "optimizer": f"{kind.__module__}.{kind.__qualname__}",
        "groups": [list(group["params"]) for group in state["optimizer"]["param_groups"]],
    }


def check_state(path: Path, state: Mapping[str, Any], optimizer: Optimizer) -> None:
    """Raise where a checkpoint is of another model or optimizer.

    Args:
        path: The checkpoint.
        state: What it is to be read into, with a state of the optimizer for every parameter.
        optimizer: The optimizer.

    Raises:
        ValueError: A parameter is missing on one side or has another shape, or the optimizer is another one.
    """
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    shapes = {name: tuple(getattr(kept, "size", ())) for name, kept in saved.items()}
    there = {name.removeprefix("model.") for name in shapes if name.startswith("model.")}
    _check_names("the model", there, state["model"])
    for name, weight in state["model"].items():
        if isinstance(weight, torch.Tensor) and tuple(weight.shape) != shapes[f"model.{name}"]:
            raise _other(f"{name} has the shape {shapes[f'model.{name}']} there and {tuple(weight.shape)} here")
    own = facts(state, optimizer)
    recorded = json.loads((path / FACTS).read_text(encoding="utf-8")) if (path / FACTS).exists() else own
    if recorded["optimizer"] != own["optimizer"]:
        raise _other(f"its optimizer is {recorded['optimizer']}, and here it is {own['optimizer']}")
    if len(recorded["groups"]) != len(own["groups"]):
        raise _other(f"its optimizer has {len(recorded['groups'])} groups of parameters, and here {len(own['groups'])}")
    for number, (theirs, ours) in enumerate(zip(recorded["groups"], own["groups"], strict=True)):
        _check_names(f"group {number} of the optimizer", theirs, ours)
    for name, kept in state["optimizer"]["state"].items():
        prefix = f"optimizer.state.{name}."
        keys = {key.removeprefix(prefix) for key in saved if key.startswith(prefix)}
        if keys and keys != {*kept}:
            raise _other(f"its optimizer keeps {', '.join(sorted(keys))} of {name}, and here {', '.join(sorted(kept))}")


def _check_names(of: str, theirs: Iterable[str], ours: Iterable[str]) -> None:
    for here, there, where in ((ours, theirs, "here alone"), (theirs, ours, "there alone")):
        more = sorted({*here} - {*there})
        if more:
            raise _other(f"{of} has {', '.join(more[:3])}{f' and {len(more) - 3} more' if more[3:] else ''} {where}")


def _other(what: str) -> ValueError:
    return ValueError(f"the checkpoint is of another model or optimizer: {what}; use those that it was saved of")


def plain(value: Any) -> Any:
    """Numbers of numpy as Python's, at any depth: torch reads no others without running their code."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, dict):
        made = {plain(key): plain(one) for key, one in value.items()}
        return type(value)(made) if isinstance(value, Counter | OrderedDict) else made
    if type(value) in (list, tuple):
        return type(value)(plain(one) for one in value)
    return value
