"""The head of a model: logits of a language model, a value before each token, or a score of each sequence.

A value or score head stands in the place of the model's own: one number, linear in the last hidden states, that starts
at 0. Its files are those of Transformers' classes for sequence classification, where it is `score.weight`.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import nn

from twinkle_engines.models.forward import chosen, logits_of, token_values
from twinkle_engines.models.parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

HeadKind: TypeAlias = Literal["lm", "value", "score"]
"""Log-probabilities of tokens; a value at each token, of the hidden state before it; a score at the last token."""
SCORE = "score.weight"
"""The name of a value or score head in files."""


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


def check_kind(kind: str) -> None:
    """Raise ValueError for another word than those of `HeadKind`."""
    if kind not in get_args(HeadKind):
        raise ValueError(f"head={kind!r:.60} is none of {', '.join(map(repr, get_args(HeadKind)))}; use one")


def put_number_head(model: Any) -> None:
    """Put a head of one number, which starts at 0, into the place of a model's own.

    Raises:
        ValueError: The model does not say where its head is.
    """
    table, output = model.get_input_embeddings(), model.get_output_embeddings()
    if not isinstance(output, nn.Linear):
        raise ValueError(f"{type(model).__name__} has no linear head to put another one in its place: use head='lm'")
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
    """The class of Transformers that reads a head of one number, and the weights by its names; sets the config's.

    Raises:
        ValueError: Transformers has none for the model.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    try:
        kind: Any = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    except KeyError as error:
        raise ValueError(
            f"Transformers has no class for sequence classification of {type(config).__name__}, by which a head of one "
            "number is exported: use save(), which writes a checkpoint"
        ) from error
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
