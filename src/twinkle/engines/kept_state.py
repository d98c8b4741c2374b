"""What a model keeps in its modules from pass to pass, as recurrent layers do: a generation begins without it."""

from __future__ import annotations

from typing import Any

import torch


class KeptState:
    """The tensors that a model's modules hold as plain attributes, as they were when the model was built.

    Parameters and buffers are not among them. Transformers' RecurrentGemma keeps its states so, and a prompt of one
    token would go on from those of the prompt before.

    Args:
        model: The model, before its first pass.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._begin: dict[torch.nn.Module, dict[str, Any]] = {
            module: {name: value for name, value in vars(module).items() if value is None or _is_tensor(value)}
            for module in model.modules()
        }

    def forget(self) -> None:
        """Have the modules hold what they held at first."""
        for module, begin in self._begin.items():
            for name in [name for name, value in vars(module).items() if _is_tensor(value)]:
                if name not in begin:
                    delattr(module, name)
                elif vars(module)[name] is not begin[name]:
                    setattr(module, name, begin[name])


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)
