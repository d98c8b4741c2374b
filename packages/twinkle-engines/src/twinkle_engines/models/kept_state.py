"""State that a model keeps in its modules from pass to pass, as recurrent layers do: a generation begins without it."""

from __future__ import annotations

from typing import Any

import torch


class KeptState:
    """The state that a model's modules held as plain attributes and as buffers of no file, when the model was built.

    Parameters and buffers of files are not among them. Transformers' RecurrentGemma keeps its states so, and a prompt
    of one token would go on from those of the prompt before; rotary embeddings keep frequencies of long sequences.

    Args:
        model: The model, before its first pass.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        held = set(model.state_dict(keep_vars=True))
        self._begin: dict[torch.nn.Module, dict[str, Any]] = {}
        self._buffers: dict[torch.nn.Module, dict[str, torch.Tensor]] = {}
        for path, module in model.named_modules():
            self._begin[module] = dict(vars(module))
            buffers = dict(module.named_buffers(recurse=False))
            prefix = f"{path}." if path else ""
            self._buffers[module] = {name: one for name, one in buffers.items() if f"{prefix}{name}" not in held}

    def forget(self) -> None:
        """Have the modules hold what they held at first."""
        for module, begin in self._begin.items():
            for name in [name for name, value in vars(module).items() if isinstance(value, torch.Tensor)]:
                if name not in begin:
                    delattr(module, name)
                elif vars(module)[name] is not begin[name]:
                    setattr(module, name, begin[name])
            for name, buffer in self._buffers[module].items():
                if getattr(module, name, None) is not buffer:
                    module.register_buffer(name, buffer, persistent=False)
