"""Passes: a divided model's forward and backward passes over a batch, with the same collectives on all ranks."""

from __future__ import annotations

import inspect
import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from twinkle_engines.batches.given import flag
from twinkle_engines.batches.padded import filler
from twinkle_engines.batches.padding import TRUNCATED
from twinkle_engines.models.forward import has_head_by_token, token_logprobs
from twinkle_engines.models.micro_batches import MicroBatch, check_inputs, is_packed, micro_batches
from twinkle_engines.models.neighbours import Neighbours, measure_attention, measure_packs, measure_rows
from twinkle_engines.models.read_columns import without_left_out
from twinkle_engines.models.sequence_attention import attention_by_sequence, can_attend_by_sequence
from twinkle_engines.models.token_limits import token_limits
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor
    from torch.distributed import ProcessGroup

    from twinkle_engines.models.micro_batches import Batch
    from twinkle_engines.models.objective import Objective
    from twinkle_engines.parallel.gradients import GradientSums
    from twinkle_engines.parallel.model_layout import ModelLayout

_GIVEN = {"input_ids", "attention_mask", "position_ids", "labels"}
"""Inputs of a model that a batch may have: its labels are read by the losses."""


class Passes:
    """The passes of one model.

    Args:
        model: The model, before it is divided.
        layout: What it is divided over.
        micro_batch_size: Rows of a padded pass at most; None for all.
        max_tokens: Tokens of a pack at most; None packs lists alone.
    """

    def __init__(self, model: Any, layout: ModelLayout, micro_batch_size: int | None, max_tokens: int | None) -> None:
        self._model, self._layout = model, layout
        self._micro_batch_size, self._max_tokens = micro_batch_size, max_tokens
        self._limits = token_limits(model)
        self._not_given = set(inspect.signature(plain_model(model).forward).parameters) - _GIVEN
        self._neighbours: dict[bool, Neighbours] = {}
        self._by_sequence = can_attend_by_sequence(model, layout.device)
        self._by_token: bool | None = None

    def prepare(self, batch: Batch, check: Callable[[], None] = lambda: None) -> list[MicroBatch] | None:
        """This rank's micro-batches, and fillers up to the largest number of any data rank.

        All ranks take part in the collectives of each forward and backward pass, or none does: None where another data
        rank cannot read its part of the batch, which raises the error there.

        Args:
            batch: This rank's part of the batch.
            check: Raises for a batch that is not to be computed.
        """
        neighbours = self._measured(batch)
        read, left = without_left_out(batch)
        mine: list[MicroBatch] = []
        failure: Exception | None = None
        try:
            parts = micro_batches(read, self._micro_batch_size, self._max_tokens, neighbours)
            mine = [part._replace(left=left) for part in parts]
            check()
            check_inputs(batch, self._not_given)
            for part in mine:
                self._limits.check(part.columns["input_ids"])
                self._limits.check_targets(part.columns["targets"][part.columns["mask"]])
                self._limits.check_length(part.longest)
        except Exception as error:
            failure = error
        steps = self._layout.max_over_data(len(mine) if failure is None else math.inf)
        if failure is not None:
            raise failure
        if math.isinf(steps):
            return None
        return mine + [MicroBatch(filler())] * (int(steps) - len(mine))

    def has_dropout(self, wanted: bool | None, aim: Objective, parts: Sequence[MicroBatch]) -> bool:
        """Whether a pass has dropout: as is wanted, or where the loss compares with nothing; all ranks call this.

        Raises:
            TypeError: It is no flag that is wanted.
        """
        return not self._compares(aim, parts) if wanted is None else flag("dropout", wanted)

    def _compares(self, aim: Objective, parts: Sequence[MicroBatch]) -> bool:
        """Whether a loss compares with log-probabilities of another model or moment; all ranks call this."""
        if aim.compares is not None:
            return aim.compares
        has = any(part.has(name) for part in parts for name in ("logprobs", "ref_logprobs"))
        return self._layout.max_over_all(float(has)) > 0

    def is_truncated(self, aim: Objective, parts: Sequence[MicroBatch]) -> bool:
        """Whether a loss over samples gets some of this rank that were drawn from a part of the tokens."""
        return aim.sampled is not False and any(
            bool(part.columns[TRUNCATED].any())
            for part in parts
            if TRUNCATED in part.columns and (aim.sampled or part.has("logprobs"))
        )

    def logprobs(self, part: MicroBatch) -> Tensor:
        """The log-probabilities of a part's ids, on the CPU."""
        columns = part.on(self._layout.device).columns
        with self._collective_pass(), attention_by_sequence(self._model, self._by_sequence and part.is_pack):
            return token_logprobs(self._model, {**columns, "targets": columns["input_ids"]}).cpu()

    def add_gradients(
        self, parts: Sequence[MicroBatch], aim: Objective, sums: GradientSums
    ) -> tuple[list[float], Exception | None]:
        """Add this rank's gradients: its sums of loss, count and tokens, and what the loss raised, if it did.

        Other ranks wait in the collectives of each pass, so this one goes on with a loss of 0 after a failure.
        """
        totals = [0.0, 0.0, 0.0]
        failure: Exception | None = None
        for part in (one.on(self._layout.device) for one in parts):
            counted = part.columns["mask"]
            with attention_by_sequence(self._model, self._by_sequence and part.is_pack):
                with self._collective_pass():
                    logprobs = token_logprobs(self._model, part.columns, counted if self._by_token else None)
                total, watched = None, _LossInput(logprobs)
                if part.sequences and failure is None:
                    try:
                        total, count = aim.share(watched.values, part)
                        figures = (total.item(), count, float(counted.sum()))
                        totals = [sum(pair) for pair in zip(totals, figures, strict=True)]
                    except Exception as error:
                        failure, total = error, None
                with self._collective_pass():
                    if total is not None:
                        total.backward()  # type: ignore[no-untyped-call]  # torch's own
                    if not watched.seen:
                        failure = failure or (aim.without_gradient() if total is not None else None)
                        nothing = 0.0 * torch.where(counted, logprobs, 0).sum()
                        nothing.backward()  # type: ignore[no-untyped-call]  # torch's own
            sums.add()
        if failure is not None:
            failure.add_note("the gradients since the last step() are forgotten")
        return totals, failure

    def _measured(self, batch: Batch) -> Neighbours:
        """Measure once what sequences of such a batch, padded or packed, do to each other; all ranks call this."""
        packed = is_packed(batch, self._max_tokens)
        if packed not in self._neighbours:
            device, agree = self._layout.device, self._layout.max_over_all
            with self._collective_pass():
                if packed and self._by_sequence:
                    self._by_sequence = measure_attention(self._model, device, agree)
                with attention_by_sequence(self._model, packed and self._by_sequence):
                    self._neighbours[packed] = (
                        measure_packs(self._model, device, agree)
                        if packed
                        else measure_rows(self._model, device, "right", agree)
                    )
                if self._by_token is None:
                    self._by_token = has_head_by_token(self._model, device, agree)
        return self._neighbours[packed]

    @contextmanager
    def _collective_pass(self) -> Iterator[None]:
        """A pass with collectives, in which other ranks wait: where it fails here, they get an error at once."""
        try:
            yield
        except Exception as error:
            if self._layout.world_size > 1:
                self._layout.leave()
                error.add_note(
                    "the pass failed on this rank, or on one that it waited for; its process groups are closed: "
                    "restart the group"
                )
            raise


class _LossInput:
    """Values that a loss is computed from, and whether its backward pass has come to them.

    Attributes:
        values: The values.
        seen: Whether it has.
    """

    def __init__(self, logprobs: Tensor) -> None:
        self.values = logprobs.clone()  # a loss may write on them
        self.seen = False
        self.values.register_hook(self._see)  # type: ignore[no-untyped-call]  # torch's own

    def _see(self, gradient: Tensor) -> None:
        self.seen = True


@contextmanager
def dropout(model: Any, on: bool, group: ProcessGroup, device: torch.device) -> Iterator[None]:
    """Passes with dropout, and with what else draws in layers, or without; all ranks of the group call this.

    Args:
        model: The model.
        on: Whether the passes have it.
        group: Ranks that draw alike, whatever their generators; these go on by one number in each.
        device: Where the model is.
    """
    model.train(on)
    if not on or dist.get_world_size(group) == 1:
        yield
        return
    seed = torch.randint(2**62, (1,)).to(device)
    dist.broadcast(seed, group=group, group_src=0)
    with torch.random.fork_rng([device] if device.type == "cuda" else [], device_type=device.type):
        torch.random.manual_seed(int(seed))
        yield
