"""Loading: a folder's weights are brought into the divided model, each rank its slices; those of a config are drawn.

Invariant: until its filler has run, a skeleton's parameters are memory that nobody has touched, which takes none.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from twinkle_engines.checkpoints.checkpoint import agreed
from twinkle_engines.models.head import SCORE, head_name, put_number_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from torch import Tensor
    from transformers import PretrainedConfig

    Filler: TypeAlias = Callable[[Any], None]
    """Brings its weights into a skeleton that was divided, or is whole; all ranks call it."""


def skeleton(config: PretrainedConfig, kind: torch.dtype, is_lm: bool = True) -> Any:
    """A model without its weights, whose head has one number where it is no language model."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=kind)
    model.tie_weights()
    if not is_lm:
        put_number_head(model)
    return model


def of_folder(
    source: str | PathLike[str], kind: torch.dtype, whole: Callable[[], Any], is_lm: bool = True
) -> tuple[Any, Filler, bool] | None:
    """A skeleton of a folder's model, its filler, and whether that reads slices; None where there are no safetensors.

    Where files have other names than the model's, as with fused experts, one rank reads the whole for all.
    """
    from safetensors import safe_open
    from transformers import AutoConfig, GenerationConfig

    folder = Path(source)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    shapes: dict[str, list[int]] = {}
    places: dict[str, Path] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  no mapping
        shapes |= found
        places |= dict.fromkeys(found, file)
    config = AutoConfig.from_pretrained(folder)
    model = skeleton(config, kind, is_lm)
    pairs = [(a, b) for a, b in model.all_tied_weights_keys.items() if {a, b} <= places.keys()]
    if not all(_are_equal(places, a, b) for a, b in pairs):  # as in Transformers, what is there goes first
        for one in (config, config.get_text_config()):
            one.tie_word_embeddings = False
        model = skeleton(config, kind, is_lm)
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.name_or_path = model.config.name_or_path = str(source)
    own = {name: list(one.shape) for name, one in model.state_dict().items()}
    head = None if is_lm else head_name(model)
    names = {name: SCORE if name == head else name for name in own if name != head or SCORE in shapes}
    tied = model.all_tied_weights_keys
    missing = [name for name, there in names.items() if there not in shapes and tied.get(name) not in shapes]
    if missing or any(shapes[there] != own[name] for name, there in names.items() if there in shapes):
        return model, lambda model: _fill_from_first(model, whole), False
    return model, lambda model: _read(model, folder, {a: b for a, b in names.items() if b in shapes}), True


def _are_equal(places: dict[str, Path], first: str, second: str) -> bool:
    """Whether two weights in files are equal, read by some rows at a time."""
    from safetensors import safe_open

    with safe_open(places[first], framework="pt") as one, safe_open(places[second], framework="pt") as other:
        left, right = one.get_slice(first), other.get_slice(second)
        rows = range(0, left.get_shape()[0], 4096)
        return left.get_shape() == right.get_shape() and all(
            torch.equal(left[row : row + 4096], right[row : row + 4096]) for row in rows
        )


def drawn(config: PretrainedConfig, kind: torch.dtype, is_lm: bool = True) -> Any:
    """A model of a config, whose weights are a function of torch's seed: those of each rank, and of a sampler."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch.initial_seed())
        model: Any = AutoModelForCausalLM.from_config(deepcopy(config), dtype=kind)  # Transformers writes it there
    if not is_lm:
        put_number_head(model)
    return model


def _read(model: Any, folder: Path, names: dict[str, str]) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = _state(model)
    load({there: state[name] for name, there in names.items()}, storage_reader=HuggingFaceStorageReader(str(folder)))


def _fill_from_first(model: Any, whole: Callable[[], Any]) -> None:
    """Give each rank its part of tensors that the first rank reads, one after the other."""
    found: dict[str, Tensor] = {}
    with agreed("reading the model"):
        if dist.get_rank() == 0:
            found = whole().state_dict()
    for name, own in _state(model).items():
        flag = [name in found]
        dist.broadcast_object_list(flag, src=0)
        if flag[0]:  # else an adapter's
            given = found[name].to(own.device, own.dtype) if name in found else torch.empty(own.shape, dtype=own.dtype)
            dist.broadcast(given := given.to(own.device).contiguous(), src=0)
            _put(own, given)


def _put(own: Any, value: Tensor) -> None:
    """Write this rank's part of a whole tensor: tp has divided it first, and FSDP2 what that left to a rank."""
    if not isinstance(own, DTensor):
        own.copy_(value)
        return
    for dim, placement in reversed([*enumerate(own.placements)]):
        if (along := getattr(placement, "dim", None)) is not None:
            parts, rank = value.chunk(own.device_mesh.size(dim), along), own.device_mesh.get_local_rank(dim)
            value = parts[rank] if rank < len(parts) else value.narrow(along, 0, 0)
    own.to_local().copy_(value)


def _state(model: Any) -> dict[str, Any]:
    """The weights by their names without what peft adds around them."""
    return {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): one
        for name, one in model.state_dict().items()
    }
