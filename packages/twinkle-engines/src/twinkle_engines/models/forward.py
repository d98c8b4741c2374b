"""The forward pass of a language model: the log-probability of each token after those before it.

Invariant: logits are there for one chunk of the tokens that count, and no longer than the chunk is computed; where
there are several chunks, the backward pass computes each anew from its hidden states.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from twinkle_engines.batches.padding import TEMPERATURES
from twinkle_engines.models.parallel import plain_model

if TYPE_CHECKING:
    from torch import Tensor

    from twinkle_engines.batches.padding import Padded
    from twinkle_engines.models.head import Head

Entropy: TypeAlias = Literal["none", "measured", "trained"]
"""Whether entropies are computed, and whether gradients come from them."""
CHUNK = 2**24
"""Logits of a chunk at most: 64 MB in float32."""


class TokenValues(NamedTuple):
    """Log-probabilities of the targets and, where they are asked for, entropies, in float32: what a loss is given.

    Both have the shape (sequences, tokens). In the place of log-probabilities a value head has a value of the state
    before each token, and a score head one number for each sequence, (sequences,).
    """

    logprobs: Tensor
    entropies: Tensor | None
    top_logprobs: Tensor | None = None
    top_ids: Tensor | None = None


def token_values(
    model: Any,
    head: Head,
    batch: Padded,
    counted: Tensor,
    entropy: Entropy = "none",
    top: Tensor | None = None,
    top_k: int = 0,
) -> TokenValues:
    """Log-probabilities of the batch's targets, at its temperatures, where tokens count; 0 elsewhere.

    Args:
        model: The model.
        head: Its head, as `find_head` has it; of one number, the values or scores take their place.
        batch: The batch.
        counted: Tokens (sequences, tokens) whose values are wanted; the first of a sequence has none.
        entropy: Whether entropies are computed.
        top: Further ids of each token, (sequences, tokens, k), whose log-probabilities are wanted; None for none.
        top_k: So many likeliest ids are found, and their log-probabilities.
    """
    if head.kind == "score":
        return TokenValues(_scores(model, head, batch), None)
    targets, heat = batch["targets"], batch.get(TEMPERATURES)
    wanted = counted[:, 1:].flatten().nonzero()[:, 0]
    places = wanted if len(wanted) else wanted.new_zeros(1)  # the head is a part of each pass
    after = places + places // max(targets.shape[1] - 1, 1) + 1  # of the flat columns, with the first tokens
    heat = None if heat is None else heat.flatten()[after]
    wide = targets.flatten()[after]
    if top is not None:
        wide = torch.cat([wide[:, None], top.flatten(0, 1)[after].long()], 1)
    reader = _LogitReader(head, after - 1, wide, heat, entropy, top_k)
    if head.after is None:
        logits = logits_of(model, batch)
        reader.found.append(reader.values(logits.flatten(0, 1)[after - 1], reader.targets, heat))
    else:
        logits = _hooked(model, batch, reader)
    # FSDP2 prepares its backward pass where the model's own output has one; a logit may be -inf
    link = logits[..., :1].nan_to_num(0.0, 0.0, 0.0).sum() * 0.0

    def spread(parts: list[Tensor]) -> Tensor:
        flat = torch.cat(parts) * (1.0 if len(wanted) else 0.0)
        rows = flat.new_zeros(targets.numel(), *flat.shape[1:]).index_copy(0, after, flat) + link
        return rows.view(*targets.shape, *flat.shape[1:])

    logprobs = spread([one for one, _, _ in reader.found])
    entropies = [one for _, one, _ in reader.found if one is not None]
    ids = [one for *_, one in reader.found if one is not None]
    some = spread(entropies) if entropies else None
    if logprobs.dim() == targets.dim():
        return TokenValues(logprobs, some)
    return TokenValues(logprobs[..., 0], some, logprobs[..., 1:], spread(ids).long() if ids else top)


def _scores(model: Any, head: Head, batch: Padded) -> Tensor:
    """The number that a score head gives to each sequence at its last token, (sequences,); 0 for one without tokens."""
    ids = batch["input_ids"]
    if "attention_mask" in batch:
        lengths = batch["attention_mask"].sum(1)
        last = torch.arange(len(ids), device=ids.device) * ids.shape[1] + (lengths - 1).clamp(min=0)
    else:
        begins = (batch["position_ids"][0] == 0).nonzero()[:, 0]
        last = torch.cat([begins[1:], begins.new_tensor([ids.shape[1]])]) - 1
        lengths = last + 1 - begins
    reader = _LogitReader(head, last, ids.flatten()[last], None, "none")
    logits = _hooked(model, batch, reader)
    scores: Tensor = torch.cat([one for one, *_ in reader.found]) * (lengths > 0)
    return scores + logits.sum() * 0.0


def _hooked(model: Any, batch: Padded, reader: _LogitReader) -> Tensor:
    """The logits that a reader leaves, which has read the hidden states before those hooks by which tp divides them."""
    handle = plain_model(model).get_output_embeddings().register_forward_pre_hook(reader, prepend=True)
    try:
        return logits_of(model, batch)
    finally:
        handle.remove()


class _LogitReader:
    """A hook of a head: it computes the values of some places in chunks, and leaves the model the logits of one."""

    def __init__(
        self, head: Head, places: Tensor, targets: Tensor, heat: Tensor | None, entropy: Entropy, top_k: int = 0
    ) -> None:
        self._head, self._places, self._heat, self._entropy = head, places, heat, entropy
        self._is_busy, self._top_k = False, top_k
        self.targets = targets
        self.found: list[tuple[Tensor, Tensor | None, Tensor | None]] = []

    def __call__(self, module: Any, given: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if self._is_busy:  # a chunk
            return None
        hidden, *rest = given
        states = hidden.flatten(0, 1).index_select(0, self._places)
        rows = max(1, CHUNK // self._head.vocabulary)
        after: Any = self._head.after

        def chunk(some: Tensor, targets: Tensor, heat: Tensor | None) -> tuple[Tensor, Any, Any]:
            return self.values(after(module(some[None], *rest)[0]), targets, heat)

        self._is_busy = True
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            chosen_part = (states[part], self.targets[part], None if self._heat is None else self._heat[part])
            if len(states) <= rows or not torch.is_grad_enabled():
                self.found.append(chunk(*chosen_part))
            else:
                made: Any = checkpoint(chunk, *chosen_part, use_reentrant=False, preserve_rng_state=False)
                self.found.append(made)
        self._is_busy = False
        return (states[None, :1], *rest)

    def values(self, logits: Tensor, targets: Tensor, heat: Tensor | None) -> tuple[Tensor, Any, Any]:
        """Log-probabilities, entropies and likeliest ids of logits (places, vocabulary); numbers as they are."""
        if self._head.kind != "lm":
            return logits[..., 0].float(), None, None
        if heat is not None:
            logits = logits / heat[..., None].to(torch.promote_types(logits.dtype, torch.float32))
        ids = logits.topk(self._top_k, -1).indices if self._top_k else None
        targets = targets if ids is None else torch.cat([targets[:, None], ids], 1)
        if self._entropy == "none":
            return chosen(logits, targets), None, ids
        with torch.set_grad_enabled(self._entropy == "trained" and torch.is_grad_enabled()):
            wide = logits if logits.dtype == torch.float64 else logits.float()
            likely = wide.softmax(-1)  # a logit of -inf has the probability 0, and 0 times it is no number
            entropies = wide.logsumexp(-1) - (likely * wide.clamp(min=-1e30)).sum(-1)
        return chosen(logits, targets), entropies, ids


def logits_of(model: Any, batch: Padded) -> Tensor:
    """The logits (sequences, tokens, vocabulary) of a batch, or those that a hook of the head leaves."""
    names = ("input_ids", "attention_mask", "position_ids")  # the positions of packs alone, which have no mask
    given = {name: batch[name] for name in names if name in batch}
    if "attention_mask" in given:  # a row without any token sees its first padding: attention to nothing is no number
        mask = given["attention_mask"].bool()
        mask = torch.cat([mask[:, :1] | ~mask.any(1, keepdim=True), mask[:, 1:]], dim=1)
        given["attention_mask"] = mask.long()  # as tokenizers make it; some models calculate with it
    logits: Tensor = model(**given, use_cache=False).logits
    return logits


def chosen(logits: Tensor, targets: Tensor) -> Tensor:
    """Log-probabilities of targets (...), or (..., k), under logits (..., vocabulary), in at least float32."""
    many = targets.dim() == logits.dim()
    found: Tensor = _Chosen.apply(logits, targets if many else targets[..., None])  # type: ignore[no-untyped-call]  # torch's own
    return found if many else found[..., 0]


class _Chosen(torch.autograd.Function):
    """A softmax whose gradient takes one pass over the logits, and one tensor of their size."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        wide = logits if logits.dtype == torch.float64 else logits.float()
        whole = wide.logsumexp(dim=-1, keepdim=True)
        ctx.save_for_backward(logits, targets, whole)
        return wide.gather(-1, targets) - whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, targets, whole = ctx.saved_tensors
        shares = (logits - whole).exp_().mul_(-gradient.sum(-1, keepdim=True))
        shares.scatter_add_(-1, targets, gradient)
        return shares.to(logits.dtype), None
