"""TokenLimits: which token ids a model knows, and how long a sequence may be, read off its own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from twinkle_engines.parallel.tensor_parallel import plain_model, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

_OFFSETS = 8
"""Rows that a table of positions may have in addition to those of positions, as OPT's two."""


class TokenLimits(NamedTuple):
    """Ids and positions that a model has a row for.

    Beyond, one rank raises torch's index error, and a divided table gives zeros.

    Attributes:
        vocabulary: Token ids are below this; None where the model has no table of them.
        predicted: Ids that the head predicts are below this.
        positions: Tokens of a sequence at most; None where the model has no table of positions, as with rotary ones.
    """

    vocabulary: int | None
    predicted: int | None
    positions: int | None

    def check(self, ids: Sequence[int] | torch.Tensor, what: str = "a batch") -> None:
        """Raise for ids that the model does not know.

        Raises:
            ValueError: An id is below 0, or not below the size of the vocabulary.
        """
        _check_below(ids, self.vocabulary, f"{what} has the token id", "tokens of the model's vocabulary")

    def check_targets(self, ids: torch.Tensor) -> None:
        """Raise for ids that the model does not predict.

        Raises:
            ValueError: An id is below 0, or not below the size of the head.
        """
        _check_below(ids, self.predicted, "a batch has the label", "tokens that the model's head predicts")

    def check_length(self, length: int, what: str = "a sequence") -> None:
        """Raise for a sequence that is longer than the model's table of positions.

        Raises:
            ValueError: It is.
        """
        if self.positions is not None and length > self.positions:
            raise ValueError(
                f"{what} has {length} tokens, but the model has positions for {self.positions}: use at most "
                f"{self.positions} tokens"
            )


def token_limits(model: Any) -> TokenLimits:
    """The limits of a model, with adapters or without; ask before it is divided."""
    own = plain_model(model)
    table = own.get_input_embeddings()
    vocabulary = _rows(table)
    predicted = _rows(own.get_output_embeddings())
    return TokenLimits(vocabulary, predicted if predicted is not None else vocabulary, _positions(own, table))


def _rows(table: Any) -> int | None:
    weight = getattr(plain_table(table), "weight", None)
    return int(weight.shape[0]) if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def _positions(model: Any, table: Any) -> int | None:
    """Tokens for which a table has rows, as far as the config says how many that is."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        return None
    sizes = {part.num_embeddings for part in model.modules() if isinstance(part, nn.Embedding) and part is not table}
    sizes |= {len(buffer) for name, buffer in model.named_buffers() if "pos" in name and buffer.dim() == 2}
    return limit if any(limit <= size <= limit + _OFFSETS for size in sizes) else None


def _check_below(ids: Sequence[int] | torch.Tensor, size: int | None, what: str, of: str) -> None:
    given = torch.as_tensor(ids)
    if size is None or not given.numel():
        return
    low, high = (int(value) for value in given.aminmax())
    if low < 0 or high >= size:
        wrong = low if low < 0 else high
        raise ValueError(
            f"{what} {wrong}, but there are {size} {of}: use ids from 0 to {size - 1}, or resize the model's "
            "embeddings to the tokenizer's"
        )
