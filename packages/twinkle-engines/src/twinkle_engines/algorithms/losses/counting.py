"""Tokens that count, sums over sequences, and averages, of padded and packed batches alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

Normalization = Literal["token", "sequence", "constant"]


def counted(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Whether each token counts: the model wrote it, and it is not the first of its sequence, which none predicts.

    Args:
        batch: With `input_ids`; `mask` where not every token counts, `attention_mask` where it is padded, and
            `position_ids` where it is packed.

    Returns:
        Booleans of the shape of `input_ids`.
    """
    ids = batch["input_ids"]
    there = batch["attention_mask"].bool() if "attention_mask" in batch else torch.ones_like(ids, dtype=torch.bool)
    later = batch["position_ids"] > 0 if "position_ids" in batch else there.cumsum(1) > 1
    return there & later & (batch["mask"].bool() if "mask" in batch else True)


def needed(batch: Mapping[str, torch.Tensor], name: str, loss: str) -> torch.Tensor:
    """A column that a loss cannot do without, with a value for each token.

    Raises:
        KeyError: The batch has none.
        ValueError: It has another shape, which torch would spread over the wrong dim; or a value is infinite where a
            token counts, which a bound would hide. NaN goes on into the loss.
    """
    if name not in batch:
        raise KeyError(f"the loss {loss} needs the column {name}, and the batch has {', '.join(batch)}")
    column, shape = batch[name], batch["input_ids"].shape
    if column.shape != shape:
        raise ValueError(
            f"the loss {loss} reads the column {name} by token, of the shape {tuple(shape)}, but it has the shape "
            f"{tuple(column.shape)}: give each token its value, as {name}[:, None].expand_as(input_ids) does with one "
            "number a sequence"
        )
    infinite = counted(batch) & column.isinf()
    if bool(infinite.any()):
        raise ValueError(
            f"the column {name} has {column[infinite][0].item()} at a token that counts, and the loss "
            f"{loss} has no value there: look at the model that computed it, or leave the token out of the mask"
        )
    return column


def sequence_sums(values: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The sum of the counted values of a token's sequence, at each token."""
    values = torch.where(counted(batch), values, 0)
    if "sequence_ids" not in batch:
        return values.sum(1, keepdim=True).expand_as(values)
    groups = batch["sequence_ids"].flatten()
    sums = values.new_zeros(int(groups.max()) + 1 if len(groups) else 0).index_add(0, groups, values.flatten())
    return sums[groups].view_as(values)


def sequence_means(values: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The mean of the counted values of a token's sequence, at each token; 0 for a sequence without counted ones."""
    counts = sequence_sums(torch.ones_like(values), batch)
    return sequence_sums(values, batch) / counts.clamp(min=1)


def total_and_count(
    values: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    normalize: Normalization = "token",
    constant: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The numerator and the denominator of a mean; both add up over the parts of a batch, micro-batches and ranks.

    Args:
        values: One for each token.
        batch: As for `counted`; `sequence_ids` where it is packed.
        normalize: "token" is the mean over all counted tokens (DAPO, arXiv 2503.14476). "sequence" is the mean over
            sequences of the mean over their counted tokens (GRPO, arXiv 2402.03300); those without any are left out.
            "constant" is the sum, divided by `constant` times the number of sequences, with those in which nothing
            counts (Dr. GRPO, arXiv 2503.20783).
        constant: Tokens by which "constant" divides, above 0, such as those of the longest answer.

    """
    keep = counted(batch)
    values = torch.where(keep, values, 0)
    if normalize == "token":
        return values.sum(), keep.sum()
    if normalize == "constant":
        assert constant is not None
        return values.sum(), constant * _sequences(batch)
    share = torch.where(keep, 1 / sequence_sums(torch.ones_like(values), batch).clamp(min=1), 0)
    return (values * share).sum(), share.sum().round()


def _sequences(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Number of sequences that have a token."""
    if "sequence_ids" in batch:  # a pack, in which each sequence begins with the position 0
        return (batch["position_ids"] == 0).sum()
    ids = batch["input_ids"]
    return batch["attention_mask"].bool().any(1).sum() if "attention_mask" in batch else ids.new_tensor(len(ids))


def average(
    values: torch.Tensor,
    batch: Mapping[str, torch.Tensor],
    normalize: Normalization = "token",
    constant: float | None = None,
) -> torch.Tensor:
    """The mean of a loss; 0 where nothing counts. Arguments as for `total_and_count`."""
    total, count = total_and_count(values, batch, normalize, constant)
    return torch.where(count > 0, total / count.clamp(min=1e-30), 0.0 * total)
