"""Checks of what a model computes with: ids that it knows, lengths that it reads alike, packs that it keeps apart.

Each answers a fault that nobody sees: beyond a table one rank raises torch's index error and a divided table gives
zeros; rotary frequencies that depend on the longest sequence change the shorter ones; layers with a state read on over
the border of packed sequences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_engines.models.parallel import plain_model, reshard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_ROPE = {"longrope": "original_max_position_embeddings", "dynamic": "max_position_embeddings"}
"""By kind of rotary frequencies, the field of a config up to which Transformers leaves them as they are."""


class ModelLimits(NamedTuple):
    """Ids and lengths that a model computes reliably.

    Attributes:
        vocabulary: Token ids are below this; None where the model has no table of them.
        border: The length at which rotary frequencies change with the longest sequence of a pass; None without one.
        beyond: Whether sequences longer than the border have numbers of their own (LongRoPE), or none (dynamic NTK).
    """

    vocabulary: int | None
    border: int | None = None
    beyond: bool = True

    def check_ids(self, ids: Any, what: str = "a batch has the token id") -> None:
        """Raise for ids that the model does not know."""
        given, size = torch.as_tensor(ids), self.vocabulary
        if size is None or not given.numel():
            return
        low, high = (int(value) for value in given.aminmax())
        if low < 0 or high >= size:
            raise ValueError(
                f"{what} {low if low < 0 else high}, but there are {size} tokens of the model's vocabulary: use ids "
                f"from 0 to {size - 1}, or resize the model's embeddings to the tokenizer's"
            )

    def check_lengths(self, lengths: Sequence[int]) -> None:
        """Raise for sequences on both sides of the border."""
        longest = max(lengths, default=0)
        if self.border is None or longest <= self.border or (self.beyond and min(lengths) > self.border):
            return
        raise ValueError(
            f"sequences of {min(lengths)} to {longest} tokens: beyond {self.border} tokens this model's rotary "
            "frequencies depend on the longest sequence of a pass, so that a sequence would have other numbers beside "
            f"it; use at most {self.border} tokens" + (", or more for all of a batch" if self.beyond else "")
        )


def limits_of(model: Any) -> ModelLimits:
    """The limits of a model, with adapters or without; ask before it is divided."""
    own = plain_model(model)
    return ModelLimits(_rows(own.get_input_embeddings()), *rope_border(own.config))


def rope_border(config: Any) -> tuple[int | None, bool]:
    """The border of `ModelLimits`, and whether longer sequences have numbers of their own, by a model's config."""
    found = [(border, kind == "longrope") for kind, border in _borders(config.to_dict(), {}) if border]
    return min(found, default=(None, True))


def _borders(config: Any, around: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The kinds of rotary frequencies in a config, at any depth, that change with the length, and from which one."""
    if not isinstance(config, Mapping):
        return
    around = {**around, **{name: config[name] for name in _ROPE.values() if config.get(name) is not None}}
    kind = config.get("rope_type", config.get("type"))
    if kind in _ROPE and "alpha" not in config:
        yield kind, around.get(_ROPE[kind])
    for value in config.values():
        yield from _borders(value, around)


def _rows(table: Any) -> int | None:
    while hasattr(table, "base_layer") or hasattr(table, "original_module"):  # peft has put its own into the place
        table = table.base_layer if hasattr(table, "base_layer") else table.original_module
    weight = getattr(table, "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def check_packs(model: Any, device: torch.device, agree: Callable[[float], float]) -> None:
    """Raise where a sequence of a pack has other logits than alone, or sees the one before it.

    What is read by mistake has a gradient, which is exactly 0 where nothing is read, at any size of the rest. All ranks
    that share the model's parts call this, before the first pack and after other weights came.
    """
    own = plain_model(model)
    size = max(_rows(own.get_input_embeddings()) or 8, 4)
    first, second = ([1 + (7 * seed + 3 * i * seed + i) % (size - 1) for i in range(9)] for seed in (1, 2))
    leaves: list[torch.Tensor] = []

    def keep(module: object, inputs: object, output: torch.Tensor) -> torch.Tensor:
        leaves.append(output.detach().requires_grad_())
        return leaves[0].clone()  # a model may write on it

    model.eval()
    ids = torch.tensor([first + second], device=device)
    positions = torch.tensor([[*range(9), *range(9)]], device=device)
    handle = own.get_input_embeddings().register_forward_hook(keep)
    try:
        with torch.enable_grad():
            packed = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, 9:].float()
            weights = torch.linspace(0.5, 1.5, packed.numel(), device=device).view_as(packed)
            (seen,) = torch.autograd.grad((packed * weights).sum(), leaves[:1])
    finally:
        handle.remove()
    with torch.no_grad():
        alone = model(input_ids=ids[:, 9:], attention_mask=torch.ones_like(ids[:, 9:]), use_cache=False).logits[0]
    reshard(model)
    far = (packed.detach() - alone.float()).abs().amax(-1).median() > 0.1 * alone.float().std()
    sees = bool((seen[:, :9] != 0).any())
    if agree(float(sees or bool(far))):
        raise ValueError(
            f"{type(own).__name__} reads on over the border of packed sequences, as layers with a state do: give it "
            "padded batches, with micro_batch_size in place of max_tokens"
        )
