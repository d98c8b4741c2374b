"""Passes: a divided model's forward and backward passes over a batch, and checks of what it computes with.

Invariant: all ranks have as many passes, so that none waits in a collective of a pass that another leaves out:
`prepare` makes them so, and a loss that fails here has a backward pass all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from twinkle_engines.batches.micro_batches import (
    MicroBatch,
    check_trainable,
    filler,
    is_packed,
    micro_batches,
)
from twinkle_engines.models.forward import find_head, token_values
from twinkle_engines.models.objective import Totals
from twinkle_engines.models.parallel import plain_model, reshard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_engines.batches.micro_batches import Batch
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.models.forward import Head, HeadKind, TokenValues
    from twinkle_engines.models.gradients import Notices
    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.objective import Found, Objective

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


class Passes:
    """The passes of one model."""

    def __init__(
        self,
        model: Any,
        layout: ModelLayout,
        micro_batch_size: int | None,
        max_tokens: int | None,
        dropout: bool,
        kind: HeadKind = "lm",
    ) -> None:
        self._model, self._layout, self._dropout, self._kind = model, layout, dropout, kind
        self._size, self._max_tokens = micro_batch_size, max_tokens
        self._limits = limits_of(model)
        self._packs_checked = False
        self._head: Head | None = None

    def look_again(self) -> None:
        """Have packs checked again: other weights have come."""
        self._packs_checked = False

    def prepare(self, batch: Batch, aim: Objective | None = None) -> list[MicroBatch] | None:
        """This rank's micro-batches, and fillers up to the largest number of any rank; all ranks call this.

        All ranks take part in the collectives of each forward and backward pass, or none does: None where another
        rank cannot read its part of the batch, which raises the error there.
        """
        device, agree = self._layout.device, self._layout.max_over_all
        if is_packed(batch, self._max_tokens) and not self._packs_checked:
            check_packs(self._model, device, agree)
            self._packs_checked = True
        if self._head is None:
            self._head = find_head(self._model, device, agree, self._kind)
        mine: list[MicroBatch] = []
        failure: Exception | None = None
        try:
            mine = self._read(batch, aim)
        except Exception as error:
            failure = error
        steps = agree(len(mine) if failure is None else math.inf)
        if failure is not None:
            raise failure
        return None if math.isinf(steps) else mine + [filler()] * (int(steps) - len(mine))

    def _read(self, batch: Batch, aim: Objective | None) -> list[MicroBatch]:
        in_pairs = aim is not None and (aim.is_own or aim.unit == "pair")
        found = list(micro_batches(batch, self._size, self._max_tokens, in_pairs=in_pairs))
        if aim is not None:
            check_trainable(batch, aim.unit == "pair")
        for part in found:
            self._limits.check_ids(part.columns["input_ids"])
            for name in {"targets", "teacher_ids"} & part.columns.keys():
                self._limits.check_ids(part.columns[name][part.columns["mask"]], "a batch has the label")
            self._limits.check_lengths(part.lengths)
        return found

    @torch.no_grad()
    def all_values(self, rollouts: Rollouts, top_k: int | None = None) -> dict[str, list[Tensor]]:
        """Columns of each sequence, on the CPU: "values", log-probabilities or values by token; a first token has 0.

        The number that a score head gives to a sequence stands at its last token, and 0 before that. With top_k, which
        a language model alone has, "teacher_ids" and "teacher_top" have the likeliest tokens, (tokens, k).

        Raises:
            ValueError: One is not finite, the model does not know an id, or top_k is out of its range.
        """
        parts = self.prepare(rollouts)
        if top_k is not None and not (self._kind == "lm" and 0 < top_k <= self._of_head().vocabulary):
            raise ValueError(f"top_k is of a language model, from 1 to its vocabulary, got {top_k} of {self._kind!r}")
        shapes: dict[str, tuple[int, ...]] = {"values": ()}
        shapes |= {} if top_k is None else {"teacher_ids": (top_k,), "teacher_top": (top_k,)}
        columns = {name: [torch.zeros(length, *shape) for length in rollouts.lengths] for name, shape in shapes.items()}
        if top_k is not None:
            columns["teacher_ids"] = [one.long() for one in columns["teacher_ids"]]
        for part in parts or ():
            found = self._values(part, top_k or 0)
            if self._kind == "score":
                for number, score in zip(part.sequences, found.logprobs.cpu(), strict=False):  # a filler has none
                    columns["values"][number][-1:] = score
                continue
            given = {"values": found.logprobs, "teacher_ids": found.top_ids, "teacher_top": found.top_logprobs}
            for name in columns:
                for number, row in part.rows(given[name].cpu()):  # type: ignore[union-attr]  # there with top_k
                    columns[name][number] = row
        reshard(self._model)
        if any(not bool(row.isfinite().all()) for row in columns["values"]):
            raise ValueError("what the model gives is not finite: look at the weights, the last sync and the dtype")
        return columns

    def _values(self, part: MicroBatch, top_k: int) -> TokenValues:
        self._model.eval()
        columns = part.on(self._layout.device).columns
        ids = columns["input_ids"]
        there = columns.get("attention_mask", torch.ones_like(ids))
        return token_values(self._model, self._of_head(), {**columns, "targets": ids}, there, top_k=top_k)

    def _of_head(self) -> Head:
        assert self._head is not None  # `prepare` has found it
        return self._head

    def add_gradients(self, parts: Sequence[MicroBatch], aim: Objective) -> tuple[Totals, Exception | None]:
        """Add this rank's gradients: its sums, and what the loss raised, if it did; without gradients only the sums.

        Other ranks wait in the collectives of each pass, so this one goes on with a loss of 0 after a failure.
        """
        self._model.train(self._dropout and torch.is_grad_enabled())
        totals = Totals()
        failure: Exception | None = None
        for part in (one.on(self._layout.device) for one in aim.whitened(parts, self._layout)):
            top = part.columns.get("teacher_ids") if "top_logprobs" in aim.asks else None
            values = token_values(self._model, self._of_head(), part.columns, part.columns["mask"], aim.entropy, top)
            total: Tensor = 0.0 * values.logprobs.flatten()[:1].sum()  # a backward pass, whatever the loss is
            if part.sequences and failure is None:
                try:
                    total = total + totals.add(aim, values, part)
                except Exception as error:
                    error.add_note("the gradients since the last step() are forgotten")
                    failure = error
            if torch.is_grad_enabled():
                total.backward()  # type: ignore[no-untyped-call]  # torch's own
        return totals, failure

    def means(self, parts: Sequence[MicroBatch], aim: Objective, batch: Batch, notices: Notices) -> Found | None:
        """The means of a batch, of all ranks, with this rank's gradients; None where another rank has failed."""
        totals, failure = self.add_gradients(parts, aim)
        if "pair" in totals.units and failure is None and (self._layout.data_world_size > 1 or len(parts) > 1):
            try:
                check_trainable(batch, True)
            except ValueError as error:
                failure = error
        found, failed = totals.of_all(aim, self._layout, failure is not None)
        if failure is not None:
            raise failure
        if failed:
            return None
        notices.batch(found, aim, parts, getattr(batch, "mask", True) is not None)  # a mapping says what counts
        return found
