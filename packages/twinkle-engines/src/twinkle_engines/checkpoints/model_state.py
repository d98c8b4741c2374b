"""A divided model as files: torch's distributed checkpoint, which any mesh reads; safetensors for `from_pretrained`."""

from __future__ import annotations

import json
import random
import warnings
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from twinkle_engines.batches.chats import ends_of
from twinkle_engines.batches.columns import equal
from twinkle_engines.checkpoints.checkpoint import agreed
from twinkle_engines.models.build import named_weights, read_tokenizer
from twinkle_engines.models.forward import as_classifier, is_number_head

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from os import PathLike

    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from twinkle_engines.models.layout import ModelLayout


_SCHEDULE, _FACTS = "schedule.pt", "facts.json"
_OF_PARAMETERS = ("params", "param_names", "foreach", "fused", "capturable")
"""What of a group says nothing of the steps."""


def write_state(
    folder: str,
    model: Any,
    optimizer: Optimizer | None,
    schedule: LRScheduler | None,
    layout: ModelLayout,
    facts: Mapping[str, str],
    said: Said,
) -> None:
    """Write weights, the optimizer's state, the schedule, and generators by data rank; all ranks call this.

    Raises:
        Exception: A rank cannot write; all ranks raise.
    """
    path = Path(folder)
    has_stepped = optimizer is not None and bool(optimizer.state)
    state = _sharded(model, optimizer)
    if optimizer is not None and not has_stepped:  # torch has made it a state, by a step with gradients of 0
        optimizer.state.clear()
        del state["optimizer"]["state"]
    with _plain_errors():
        save(state, checkpoint_id=path)
    with agreed(f"writing the checkpoint {path}"):
        if dist.get_rank() == 0:
            torch.save((None if schedule is None else schedule.state_dict(), tuple(said)), path / _SCHEDULE)
            told = {**facts, **_facts(state, optimizer, schedule)}
            (path / _FACTS).write_text(json.dumps(told), encoding="utf-8")
        if layout.mesh.get_local_rank("tp") == 0:
            torch.save(_generator_states(layout.device), _generators(path, layout))


def read_state(
    folder: str,
    model: Any,
    optimizer: Optimizer | None,
    schedule: LRScheduler | None,
    layout: ModelLayout,
    facts: Mapping[str, str],
    said: Said,
) -> list[str]:
    """Read what `write_state` wrote into a model with the same parameters, on any mesh; all ranks call this.

    Generators go on where there are as many data ranks as there were; else all ranks take those of the first. What the
    program said of the optimizer and the schedule when it made them holds, where it said something else before.

    Returns:
        What differs, such as "lr was 0.01 and is 0.001".

    Raises:
        ValueError: The checkpoint is of another model, optimizer or schedule; nothing has changed then.
        RuntimeError: The files cannot be read.
    """
    path = Path(folder)
    before = {} if optimizer is None else dict(optimizer.state)
    try:
        if optimizer is not None:
            optimizer.state.clear()  # torch then makes one for every parameter
        state = _sharded(model, optimizer)
        with agreed("reading the checkpoint"):
            _check(path, state, {**facts, **_facts(state, optimizer, schedule)})
            states = _generators(path, layout)
            generators = torch.load(
                states if states.exists() else min(path.glob("generators-*.pt")), weights_only=False
            )
            rates, before_said = torch.load(path / _SCHEDULE, weights_only=False)
    except BaseException:
        if optimizer is not None:
            optimizer.state.clear()
            optimizer.state.update(before)
        raise
    with _plain_errors():
        without = _load(state, path)
    set_model_state_dict(model, state["model"], options=_options(model))
    if optimizer is not None:
        set_optimizer_state_dict(model, optimizer, state["optimizer"], options=_options(model))
        for names, group in zip(state["optimizer"]["param_groups"], optimizer.param_groups, strict=True):
            for name, parameter in zip(names["params"], group["params"], strict=True):
                if name in without:
                    del optimizer.state[parameter]
    if schedule is not None:
        schedule.load_state_dict(rates)
    _set_generators(generators, layout.device)
    return [] if optimizer is None else _hold(said, Said(*before_said), optimizer, schedule)


class Said(NamedTuple):
    """Options that a program gives an optimizer and a schedule when it makes them, by group, and of the schedule."""

    groups: list[dict[str, Any]]
    schedule: dict[str, Any]


def said_of(optimizer: Optimizer | None, schedule: LRScheduler | None) -> Said:
    """The options of both, before a step."""
    groups = [] if optimizer is None else optimizer.param_groups
    options = [{name: one for name, one in group.items() if name not in _OF_PARAMETERS} for group in groups]
    return Said(deepcopy(options), {} if schedule is None else deepcopy(schedule.state_dict()))


def _hold(said: Said, before: Said, optimizer: Optimizer, schedule: LRScheduler | None) -> list[str]:
    """Put the program's options of now in the place of those of before; returns the differences."""
    told: dict[str, None] = {}
    for group, now, was in zip(optimizer.param_groups, said.groups, before.groups, strict=True):
        changed = [name for name in now if name in was and not equal(now[name], was[name])]
        group.update({name: now[name] for name in changed})
        told |= {f"{name} was {was[name]} and is {now[name]}": None for name in changed if name != "initial_lr"}
    changed = [name for name, one in said.schedule.items() if not equal(one, before.schedule.get(name))]
    if schedule is None or not changed:
        return [*told]
    steps = schedule.last_epoch
    schedule.load_state_dict(said.schedule)
    for group, now in zip(optimizer.param_groups, said.groups, strict=True):
        group["lr"] = now["lr"]
    with warnings.catch_warnings():  # of a schedule that goes on without the optimizer
        warnings.simplefilter("ignore")
        for _ in range(steps):
            schedule.step()
    for name in (name for name in changed if not name.startswith("_")):
        told[f"the schedule's {name} was {before.schedule.get(name)} and is {said.schedule[name]}"] = None
    return [*told]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """A block that calls torch's distributed checkpoint, whose exceptions are no `Exception`."""
    from torch.distributed.checkpoint.api import CheckpointException

    try:
        yield
    except CheckpointException as error:
        rank, (failure, _) = min(error.failures.items())
        raise RuntimeError(f"the checkpoint failed on rank {rank}: {type(failure).__name__}: {failure}") from failure


def _facts(state: Mapping[str, Any], optimizer: Optimizer | None, schedule: LRScheduler | None) -> dict[str, str]:
    """Return what has to be the same next to the weights: the optimizer, its groups of parameters, and the schedule."""
    if optimizer is None:
        return {}
    groups = [sorted(group["params"]) for group in state["optimizer"]["param_groups"]]
    names = {"optimizer": type(optimizer).__name__, "schedule": type(schedule).__name__}
    return {**names, "groups of the optimizer's parameters": repr(groups)}


def _check(path: Path, state: Mapping[str, Any], ours: Mapping[str, str]) -> None:
    """Raise where a checkpoint is of another model or optimizer, before anything is read."""
    theirs = json.loads((path / _FACTS).read_text(encoding="utf-8"))
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    there = {name.removeprefix("model."): one for name, one in saved.items() if name.startswith("model.")}
    shapes = {name: tuple(getattr(one, "size", ())) for name, one in there.items()}
    here = {name: tuple(getattr(one, "shape", ())) for name, one in state["model"].items()}
    both = [name for name in ours if name in theirs and theirs[name] != ours[name]]
    wrong = [f"{name} is {theirs[name]} there and {ours[name]} here" for name in both]
    wrong += [
        f"the weight {name} has the shape {shapes.get(name)} there and {here.get(name)} here"
        for name in sorted(shapes.keys() | here.keys())
        if shapes.get(name) != here.get(name)
    ]
    if wrong:
        raise ValueError(f"the checkpoint is of another model or optimizer: {wrong[0]}; use those that it was saved of")


def _load(state: dict[str, Any], path: Path) -> set[str]:
    """Read a checkpoint into a state, and return the parameters of which it has no state of the optimizer.

    A parameter has one from the first step on in which it has a gradient.
    """
    if "optimizer" not in state:
        load({"model": state["model"]}, checkpoint_id=path)
        return set()
    saved = FileSystemReader(path).read_metadata().state_dict_metadata
    every = state["optimizer"]["state"]
    held = {name: own for name, own in every.items() if any(f"optimizer.state.{name}.{key}" in saved for key in own)}
    groups = {"param_groups": state["optimizer"]["param_groups"]}
    load({"model": state["model"], "optimizer": {**groups, "state": held} if held else groups}, checkpoint_id=path)
    return {*every} - {*held}


def _options(model: Any) -> StateDictOptions:
    adapters = hasattr(model, "peft_config")  # the frozen parameters are those of the model that was given
    return StateDictOptions(ignore_frozen_params=adapters, strict=not adapters)


def _sharded(model: Any, optimizer: Optimizer | None) -> dict[str, Any]:
    """The parts of weights, and of the optimizer's state, that this rank has."""
    weights = get_model_state_dict(model, options=_options(model))
    if hasattr(model, "peft_config"):  # torch leaves a frozen parameter in under its second name
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        weights = {name: weight for name, weight in weights.items() if name in trained}
    if optimizer is None:
        return {"model": weights}
    return {"model": weights, "optimizer": get_optimizer_state_dict(model, optimizer, options=_options(model))}


def _generators(path: Path, layout: ModelLayout) -> Path:
    return path / f"generators-{layout.data_rank:05d}-of-{layout.data_world_size:05d}.pt"


def _generator_states(device: torch.device) -> dict[str, Any]:
    """The states of the global generators of Python, numpy, torch and the device."""
    states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if device.type != "cpu":
        states["device"] = torch.get_device_module(device).get_rng_state(device)
    return states


def _set_generators(states: dict[str, Any], device: torch.device) -> None:
    """Go on from some states; a device of another kind than theirs keeps its own."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if device.type != "cpu" and "device" in states:
        torch.get_device_module(device).set_rng_state(states["device"], device)


_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*", "consolidated*", "adapter_model*")


@torch.no_grad()
def export(model: Any, folder: str | PathLike[str]) -> None:
    """Write a model's configuration and weights; all ranks call this, the first one writes.

    Raises:
        OSError: The first rank cannot write.
        ValueError: The folder holds weights.
    """
    path, is_first = Path(folder), dist.get_rank() == 0
    with agreed("writing the model"):
        held = [file.name for pattern in _WEIGHTS for file in path.glob(pattern)] if is_first else []
        if held:
            raise ValueError(
                f"{path} holds {held[0]}, which a loader might read in place of what is written: use a new folder, or "
                "remove it"
            )
    state: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, weight in named_weights(model).items():
        whole = weight.full_tensor() if isinstance(weight, DTensor) else weight  # all ranks take part
        if is_first:
            own = whole.detach().cpu().contiguous()
            state[name] = own.clone() if own.data_ptr() in places else own  # of two that are tied, each is written
            places.add(own.data_ptr())
    with agreed("writing the model"):
        if is_first:
            (_write_adapters if hasattr(model, "peft_config") else _write_model)(model, state, path)


def _write_adapters(model: Any, state: dict[str, Tensor], path: Path) -> None:
    from safetensors.torch import save_file

    path.mkdir(parents=True, exist_ok=True)
    config = deepcopy(model.peft_config["default"])
    config.inference_mode = True
    config.save_pretrained(path)
    save_file({name: one.clone() for name, one in state.items()}, path / "adapter_model.safetensors", {"format": "pt"})


def _write_model(model: Any, state: dict[str, Tensor], path: Path) -> None:
    """Write by a twin without memory, whose class is the one that Transformers knows."""
    kind = next(one for one in type(model).__mro__ if not one.__name__.startswith("FSDP"))
    config = deepcopy(model.config)
    # a head that was trained by itself is a weight of its own, whatever the config says
    ties = {name: first for name, first in model.all_tied_weights_keys.items() if {name, first} <= state.keys()}
    is_tied = all(torch.equal(state[name], state[first]) for name, first in ties.items())
    if is_tied:
        state = {name: one for name, one in state.items() if name not in ties}
    else:
        for one in (config, config.get_text_config()):
            one.tie_word_embeddings = False
    if is_number_head(model):
        kind, state = as_classifier(model, config, state)
    with torch.device("meta"):
        twin: Any = kind(config)
    twin.config.dtype = model.dtype
    if (conversions := getattr(model, "_weight_conversions", None)) is not None:  # those that it was read by
        twin._weight_conversions = conversions
    if twin.can_generate():
        twin.generation_config = deepcopy(model.generation_config)
        with suppress(OSError, ValueError):  # a source without a tokenizer, or with one of another library
            own = read_tokenizer(model.name_or_path, None) if Path(model.name_or_path or "").is_dir() else None
            ends = ends_of(own, twin.generation_config.eos_token_id)
            if own is not None:
                own.save_pretrained(path)
            twin.generation_config.eos_token_id = (ends[0] if len(ends) == 1 else ends) if ends else None
    twin.save_pretrained(path, state_dict=state)
