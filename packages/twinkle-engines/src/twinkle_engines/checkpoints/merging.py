"""Adapters added to the weights that they adapt, one tensor at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from peft.tuners.tuners_utils import BaseTunerLayer
    from torch import Tensor


class Merged(NamedTuple):
    """A weight with its adapter: weight + scaling * (up @ down) (LoRA, arXiv 2106.09685); without one, as it is."""

    weight: Tensor
    down: Tensor | None = None
    up: Tensor | None = None
    scaling: float = 1.0

    @property
    def nbytes(self) -> int:
        """Bytes of the whole weight."""
        return self.weight.numel() * self.weight.element_size()

    def whole(self) -> Tensor:
        """The whole weight on the CPU; all ranks call this."""
        weight = whole(self.weight)
        if self.down is None or self.up is None:
            return weight
        wide = torch.promote_types(weight.dtype, torch.float32)
        change = whole(self.up).to(wide) @ whole(self.down).to(wide)
        return (weight.to(wide) + self.scaling * change).to(weight.dtype)


def whole(weight: Tensor) -> Tensor:
    """The whole of a weight on the CPU; all ranks that hold a part of it call this."""
    return (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu().contiguous()


def merged_weights(model: Any) -> dict[str, Merged]:
    """The weights of a model with adapters by the names that they have without, each with its adapter.

    Of modules that are trained as a whole (`modules_to_save`), those that were trained.

    Raises:
        ValueError: An adapter is not LoRA of a linear layer, or is more than that.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer
    from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper

    own = model.get_base_model()
    others = [name for name in model.state_dict() if not name.startswith("base_model.model.")]
    if others:
        raise _not_merged(others[0])
    adapted = {name: module for name, module in own.named_modules() if isinstance(module, BaseTunerLayer)}
    copied = {name: module for name, module in own.named_modules() if isinstance(module, AuxiliaryTrainingWrapper)}
    for name, module in adapted.items():
        _check_merged(name, module)
    found = {}
    for name, weight in own.state_dict(keep_vars=True).items():
        owner = next((one for one in (*adapted, *copied) if name.startswith(f"{one}.")), None)
        if owner is not None and owner in copied:
            if not isinstance(copied[owner], ModulesToSaveWrapper):
                raise _not_merged(owner)
            prefix = f"{owner}.modules_to_save.default."  # what is trained in place of `original_module`
            if name.startswith(prefix):
                found[f"{owner}.{name.removeprefix(prefix)}"] = Merged(weight)
        elif owner is None:
            found[name] = Merged(weight)
        elif name.startswith(f"{owner}.base_layer."):
            last = name.removeprefix(f"{owner}.base_layer.")
            found[f"{owner}.{last}"] = _adapted(adapted[owner], weight) if last == "weight" else Merged(weight)
    return found


def _check_merged(name: str, module: BaseTunerLayer) -> None:
    """Raise for a layer of peft that is more than one plain LoRA of a linear layer."""
    from peft.tuners.lora import Linear
    from torch import nn

    plain = (
        isinstance(module, Linear) and isinstance(module.base_layer, nn.Linear) and list(module.lora_A) == ["default"]
    )
    if not isinstance(module, Linear) or not plain or bool(module.lora_variant) or any(module.lora_bias.values()):
        raise _not_merged(name)


def _adapted(module: Any, weight: Tensor) -> Merged:
    parts = (module.lora_A["default"], module.lora_B["default"])
    return Merged(weight, parts[0].weight, parts[1].weight, module.scaling["default"])


def _not_merged(name: str) -> ValueError:
    return ValueError(
        f"the adapter of {name} is not merged: LoRA of linear layers is, without DoRA and bias; "
        "save_pretrained(folder) writes the adapters by themselves, which peft merges"
    )
