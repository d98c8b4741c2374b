"""Passes: a divided model's forward and backward passes over a batch, with the same collectives on all ranks.

Invariant: all ranks have as many passes, so that none waits in a collective of a pass that another leaves out:
`prepare` makes them so, and a loss that fails here has a backward pass all the same.
"""

from __future__ import annotations

import inspect
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from twinkle_engines.batches.micro_batches import (
    MicroBatch,
    check_trainable,
    filler,
    is_packed,
    micro_batches,
)
from twinkle_engines.models.checks import check_packs, limits_of
from twinkle_engines.models.forward import token_values
from twinkle_engines.models.head import find_head
from twinkle_engines.models.objective import Totals
from twinkle_engines.models.parallel import plain_model, reshard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.batches.micro_batches import Batch
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.models.forward import TokenValues
    from twinkle_engines.models.head import Head, HeadKind
    from twinkle_engines.models.layout import ModelLayout
    from twinkle_engines.models.notices import Notices
    from twinkle_engines.models.objective import Found, Objective

_GIVEN = {"input_ids", "attention_mask", "position_ids", "labels"}
"""Inputs of a model that a batch may have: its labels are read by the losses."""


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
        self._not_given = set(inspect.signature(plain_model(model).forward).parameters) - _GIVEN
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
            named = self._not_given & part.columns.keys()
            read = [name for name in named if not isinstance(part.columns[name], Tensor) or part.columns[name].any()]
            if read:
                raise ValueError(
                    f"the batch has {read[0]}, which this model would read, but an engine trains on tokens alone: use "
                    "a collator that leaves it out"
                )
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
        notices.batch(found)
        return found
