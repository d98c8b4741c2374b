"""The forward pass of a model to its head: log-probabilities of tokens, values before each token, or scores.

A value or score head stands in the place of the model's own: one number, linear in the last hidden states, that starts
at 0. Its files are those of Transformers' classes for sequence classification, where it is `score.weight`.
Invariant: logits are there for one chunk of the tokens that count, and no longer than the chunk is computed; where
there are several chunks, the backward pass computes each anew from its hidden states.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from twinkle_engines.batches.columns import TEMPERATURES
from twinkle_engines.models.parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from twinkle_engines.batches.columns import Padded

HeadKind: TypeAlias = Literal["lm", "value", "score"]
"""Log-probabilities of tokens; a value at each token, of the hidden state before it; a score at the last token."""
SCORE = "score.weight"
"""The name of a value or score head in files."""
Entropy: TypeAlias = Literal["none", "measured", "trained"]
"""Whether entropies are computed, and whether gradients come from them."""
CHUNK = 2**24
"""Logits of a chunk at most: 64 MB in float32."""


class Head(NamedTuple):
    """The way in which a model makes logits of hidden states, or one number.

    Attributes:
        vocabulary: Logits of a token.
        after: What the model does with its head's output, such as a soft cap. None: not known, or the head does not
            give some tokens the logits that it gives them among all; then the logits of all tokens are made at once.
        kind: What its output is.
    """

    vocabulary: int
    after: Callable[[Tensor], Tensor] | None
    kind: HeadKind = "lm"


NUMBERS = {kind: Head(1, lambda output: output, kind) for kind in ("value", "score")}
"""Heads of one number: what a model does with its logits is left out."""


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
    targets, temperature = batch["targets"], batch.get(TEMPERATURES)
    wanted = counted[:, 1:].flatten().nonzero()[:, 0]
    places = wanted if len(wanted) else wanted.new_zeros(1)  # the head is a part of each pass
    after = places + places // max(targets.shape[1] - 1, 1) + 1  # of the flat columns, with the first tokens
    temperature = None if temperature is None else temperature.flatten()[after]
    wide = targets.flatten()[after]
    if top is not None:
        wide = torch.cat([wide[:, None], top.flatten(0, 1)[after].long()], 1)
    reader = _LogitReader(head, after - 1, wide, temperature, entropy, top_k)
    if head.after is None:
        logits = logits_of(model, batch)
        reader.found.append(reader.values(logits.flatten(0, 1)[after - 1], reader.targets, temperature))
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
        self, head: Head, places: Tensor, targets: Tensor, temperature: Tensor | None, entropy: Entropy, top_k: int = 0
    ) -> None:
        self._head, self._places, self._temperature, self._entropy = head, places, temperature, entropy
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

        def chunk(some: Tensor, targets: Tensor, temperature: Tensor | None) -> tuple[Tensor, Any, Any]:
            return self.values(after(module(some[None], *rest)[0]), targets, temperature)

        self._is_busy = True
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            chosen_part = (
                states[part],
                self.targets[part],
                None if self._temperature is None else self._temperature[part],
            )
            if len(states) <= rows or not torch.is_grad_enabled():
                self.found.append(chunk(*chosen_part))
            else:
                made: Any = checkpoint(chunk, *chosen_part, use_reentrant=False, preserve_rng_state=False)
                self.found.append(made)
        self._is_busy = False
        return (states[None, :1], *rest)

    def values(self, logits: Tensor, targets: Tensor, temperature: Tensor | None) -> tuple[Tensor, Any, Any]:
        """Log-probabilities, entropies and likeliest ids of logits (places, vocabulary); numbers as they are."""
        if self._head.kind != "lm":
            return logits[..., 0].float(), None, None
        if temperature is not None:
            logits = logits / temperature[..., None].to(torch.promote_types(logits.dtype, torch.float32))
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
    wide = logits if logits.dtype == torch.float64 else logits.float()
    many = targets if targets.dim() == logits.dim() else targets[..., None]
    found = wide.gather(-1, many) - wide.logsumexp(-1, keepdim=True)
    return found if many is targets else found[..., 0]


def put_number_head(model: Any) -> None:
    """Put a head of one number, which starts at 0, into the place of a model's own."""
    table, output = model.get_input_embeddings(), model.get_output_embeddings()
    head = nn.Linear(output.in_features, 1, bias=False, device=table.weight.device, dtype=table.weight.dtype)
    nn.init.zeros_(head.weight)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.set_output_embeddings(head)
    model.all_tied_weights_keys = {a: b for a, b in model.all_tied_weights_keys.items() if a != head_name(model)}


def is_number_head(model: Any) -> bool:
    """Whether a model, divided or not, has a head of one number."""
    weight = getattr(plain_model(model).get_output_embeddings(), "weight", None)
    return weight is not None and weight.shape[0] == 1


def head_name(model: Any) -> str:
    """The name of the weight of a model's head, such as "lm_head.weight"."""
    output = model.get_output_embeddings()
    return next(f"{name}.weight" for name, part in model.named_modules() if part is output)


def as_classifier(model: Any, config: Any, state: Mapping[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
    """The class of Transformers that reads a head of one number, and the weights by its names; sets the config's."""
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    config.num_labels = 1
    own = head_name(model)
    return kind, {SCORE if name == own else name: one for name, one in state.items()}


@torch.no_grad()
def find_head(model: Any, device: torch.device, agree: Callable[[float], float] = float, kind: HeadKind = "lm") -> Head:
    """The head of a model, found by a pass over a few tokens; all ranks that share its parts call this."""
    if kind in NUMBERS:
        return NUMBERS[kind]
    own = plain_model(model)
    model.eval()
    ids = torch.tensor([[1, 2, 3], [2, 1, 0]], device=device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    output, outputs, given = own.get_output_embeddings(), [], torch.tensor([1, 3], device=device)
    hook = None if output is None else output.register_forward_hook(lambda module, args, made: outputs.append(made))
    logits = logits_of(model, batch).flatten(0, 1)
    if hook is not None:
        hook.remove()
    after = _after_head(outputs[0].flatten(0, 1), logits, own.config) if len(outputs) == 1 else None
    head = Head(logits.shape[-1], after)
    can_choose = "logits_to_keep" in inspect.signature(own.forward).parameters
    if agree(float(after is None or not can_choose)):
        return head._replace(after=None)
    counted = torch.tensor([[0, 0, 1], [0, 1, 0]], device=device)
    some = token_values(model, head, {**batch, "targets": ids}, counted).logprobs[counted.bool()]
    right = chosen(logits, ids.flatten().roll(-1))[given]
    is_other = bool((some - right).abs().max() > 0.01 * logits.float().std())
    return head._replace(after=None) if agree(float(is_other)) else head


def _after_head(raw: Tensor, logits: Tensor, config: Any) -> Callable[[Tensor], Tensor] | None:
    """The function that makes logits of a head's output: nothing, a soft cap, or a factor; None for something else."""
    if raw.shape != logits.shape:
        return None
    cap = getattr(config.get_text_config(), "final_logit_softcapping", None)
    factor = float((logits.double() * raw.double()).sum() / raw.double().square().sum().clamp(min=1e-30))
    forms: list[Callable[[Tensor], Tensor]] = [lambda x: x, lambda x: x * factor]
    if cap:
        forms.insert(1, lambda x: torch.tanh(x / cap) * cap)
    return next((form for form in forms if bool((form(raw) - logits).abs().max() <= 1e-3 * logits.std())), None)
