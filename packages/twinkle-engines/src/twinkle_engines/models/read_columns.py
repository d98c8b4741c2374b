"""The columns that a model's passes and a loss read: no others are fetched for a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.whole_columns import OF_THE_WHOLE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from twinkle_engines.models.micro_batches import Batch
    from twinkle_remote.values import LeftOut

_BY_TOKENIZERS = ("token_type_ids", "mm_token_type_ids")
"""What tokenizers and processors give for texts too: zeros, which change nothing."""
_OF_COLLATORS = ("input_ids", "attention_mask", "position_ids", "sequence_ids", "labels")
READ_BY_PASSES = ("ids", "temperatures", *_OF_COLLATORS, *OF_THE_WHOLE, *_BY_TOKENIZERS)
"""The columns of rollouts and of collators' mappings from which log-probabilities are computed."""


def read_by_training(loss: str | Callable[..., Tensor] = "cross_entropy", **options: object) -> Sequence[str] | None:
    """The columns that a call of `forward_backward` reads; None for all, as of a function that does not say.

    Args:
        loss: As for `forward_backward`.
        options: Its other arguments.
    """
    from twinkle_engines.algorithms.losses import READS, SAMPLED
    from twinkle_engines.batches.padding import TRUNCATED

    if not isinstance(loss, str):
        own = getattr(loss, "reads", None)
        return None if own is None else (*READ_BY_PASSES, "mask", TRUNCATED, *own)
    if loss not in READS:  # which is refused
        return None
    beta = options.get("beta", 0.0)
    penalty = ("ref_logprobs",) if loss == "grpo" and not (isinstance(beta, int | float) and beta == 0) else ()
    sampled = (TRUNCATED,) if loss in SAMPLED else ()
    return (*READ_BY_PASSES, "mask", *READS[loss], *penalty, *sampled)


def without_left_out(batch: Batch) -> tuple[Batch, Mapping[str, LeftOut]]:
    """A batch without the columns that a call does not read, and the marks of those that are by token."""
    from twinkle_engines.batches.padding import TRUNCATED
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.batches.rollouts_splitter import RolloutsSplitter
    from twinkle_remote.values import LeftOut, column_of

    if isinstance(batch, Rollouts):
        splitter = RolloutsSplitter()
        left: dict[Any, LeftOut] = {column_of(mark): mark for mark in splitter.marks(batch)}
        if not left:
            return batch, {}
        there = [name for name in splitter.columns(batch) if name not in left]
        by_token = {name: mark for name, mark in left.items() if name in (*batch.tokens, TRUNCATED)}
        return batch.select(there), by_token
    if not isinstance(batch, Mapping):
        return batch, {}
    marks = {name: one for name, one in batch.items() if isinstance(one, LeftOut)}
    return ({name: one for name, one in batch.items() if name not in marks}, marks) if marks else (batch, {})
