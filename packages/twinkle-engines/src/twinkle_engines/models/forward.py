"""The forward pass of a language model: the log-probability of each token after those before it."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional

from twinkle_engines.batches.padding import TEMPERATURES
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from twinkle_engines.batches.padded import Padded


def token_logprobs(model: Any, batch: Padded, counted: Tensor | None = None) -> Tensor:
    """Log-probabilities (sequences, tokens) of the batch's targets, at its temperatures, in float32.

    The first token's is 0. Values at padding, and at the first tokens of a pack's further sequences, mean nothing.

    Args:
        model: The model.
        batch: The batch.
        counted: Tokens (sequences, tokens) whose values are wanted; those of the others are 0, and cost no logits. Only
            of a model that `has_head_by_token`.
    """
    targets, heat = batch["targets"], batch.get(TEMPERATURES)
    if counted is None or targets.shape[1] < 2:
        logits = _logits(model, batch)[:, :-1]
        values = chosen(_heated(logits, None if heat is None else heat[:, 1:]), targets[:, 1:])
        return functional.pad(values, (1, 0))
    chosen_places = counted[:, 1:].flatten().nonzero()[:, 0]
    places = chosen_places if len(chosen_places) else chosen_places.new_zeros(1)  # the head is a part of each pass
    width = targets.shape[1]
    after = places + places // (width - 1) + 1  # of the flat columns, in which the first token stands too
    with head_at(model, after - 1):
        logits = _logits(model, batch)[0]
    found = chosen(_heated(logits, None if heat is None else heat.flatten()[after]), targets.flatten()[after])
    if not len(chosen_places):
        found = found * 0.0
    return found.new_zeros(targets.numel()).index_copy(0, after, found).view_as(targets)


@torch.no_grad()
def has_head_by_token(model: Any, device: torch.device, agree: Callable[[float], float] = float) -> bool:
    """Whether a model's head gives some tokens the logits that it gives all; all ranks that share its parts call this.

    Args:
        model: The model, divided or whole.
        device: Where it is.
        agree: The largest of the values of all ranks that share the model's parts.
    """
    own = plain_model(model)
    if "logits_to_keep" not in inspect.signature(own.forward).parameters or own.get_output_embeddings() is None:
        return False
    model.eval()
    ids = torch.tensor([[1, 2, 3], [2, 1, 0]], device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    whole = _logits(model, batch).flatten(0, 1)
    places = torch.tensor([1, 3], device=device)
    with head_at(model, places):
        some = _logits(model, batch)
    whole = whole[places][None].float()
    same = some.shape == whole.shape and bool((some.float() - whole).abs().max() <= 0.01 * whole.std())
    return agree(float(not same)) == 0


def _logits(model: Any, batch: Padded) -> Tensor:
    names = ("input_ids", "attention_mask", "position_ids")  # the positions of packs alone, which have no mask
    given = {name: batch[name] for name in names if name in batch}
    if "attention_mask" in given:  # a row without any token sees its first padding: attention to nothing is no number
        mask = given["attention_mask"].bool()
        mask = torch.cat([mask[:, :1] | ~mask.any(1, keepdim=True), mask[:, 1:]], dim=1)
        given["attention_mask"] = mask.long()  # as tokenizers make it; some models calculate with it
    logits: Tensor = model(**given, use_cache=False).logits
    return logits


def _heated(logits: Tensor, heat: Tensor | None) -> Tensor:
    """Logits (..., vocabulary) at temperatures (...)."""
    if heat is None:
        return logits
    return logits / heat[..., None].to(torch.promote_types(logits.dtype, torch.float32))


@contextmanager
def head_at(model: Any, places: Tensor) -> Iterator[None]:
    """Passes whose logits are those at some places alone, (1, places, vocabulary).

    Args:
        model: The model.
        places: Numbers of tokens in the flat batch.
    """

    def select(module: object, given: tuple[Any, ...]) -> tuple[Any, ...]:
        hidden, *rest = given
        return (hidden.flatten(0, 1).index_select(0, places)[None], *rest)

    # before the hooks by which tp divides the head's input
    handle = plain_model(model).get_output_embeddings().register_forward_pre_hook(select, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def chosen(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of targets (...) under logits (..., vocabulary), in at least float32."""
    found: Tensor = _Chosen.apply(logits, targets)  # type: ignore[no-untyped-call]  # torch's own
    return found


class _Chosen(torch.autograd.Function):
    """A softmax whose gradient takes one pass over the logits, and one tensor of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        wide = logits if logits.dtype == torch.float64 else logits.float()
        whole = wide.logsumexp(dim=-1)
        ctx.save_for_backward(logits, targets, whole)
        return wide.gather(-1, targets[..., None])[..., 0] - whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, whole = ctx.saved_tensors
        shares = (logits - whole[..., None]).exp_().mul_(-gradient[..., None])
        shares.scatter_add_(-1, targets[..., None], gradient[..., None])
        return shares.to(logits.dtype), None
