"""Episodes of rollouts: the sequences that are compared with others of their row, and their rewards.

An episode is one sequence, or those of a row that have one number in the column "episode" by sequence.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_remote import get

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_engines.batches.rollouts import Rollouts


class EpisodeRewards(NamedTuple):
    """The rewards of the episodes of rollouts.

    Attributes:
        rewards: Of each episode, the sum over its sequences, float64 [episodes]; NaN where none of them has one.
        of_sequence: The episode of each sequence, [sequences].
        rows: The episodes of each row, in the order of their first sequences.
    """

    rewards: torch.Tensor
    of_sequence: torch.Tensor
    rows: list[range]


def episode_rewards(rollouts: Rollouts, rewards: torch.Tensor | None = None) -> EpisodeRewards:
    """The episodes of rollouts, numbered row by row.

    Args:
        rollouts: With rewards, and `episode` where an episode is several sequences.
        rewards: Rewards of the sequences, in place of theirs.
    """
    given = (rollouts.sequence_rewards() if rewards is None else rewards).double().cpu()
    names: Sequence[Any] = rollouts.column("episode") if "episode" in rollouts.sequences else range(len(given))
    numbers: list[int] = []
    rows = []
    before = 0
    for group in rollouts.groups():
        own: dict[Any, int] = {}
        for i in group:
            numbers.append(own.setdefault(int(names[i]), before + len(own)))
        rows.append(range(before, before + len(own)))
        before += len(own)
    of_sequence = torch.tensor(numbers, dtype=torch.int64)
    sums = torch.zeros(before, dtype=torch.float64).index_add(
        0, of_sequence, given.nan_to_num(0.0, math.inf, -math.inf)
    )
    graded = torch.zeros(before).index_add(0, of_sequence, (~given.isnan()).float())
    return EpisodeRewards(torch.where(graded > 0, sums, math.nan), of_sequence, rows)


def counted_tokens(rollouts: Rollouts) -> torch.Tensor:
    """Whether each token counts, of all sequences one after the other: the first of a sequence does not."""
    there: torch.Tensor = rollouts.tokens.get("mask", torch.ones_like(rollouts.tokens["ids"])).bool().cpu().clone()
    starts = [0, *accumulate(rollouts.lengths)][:-1]
    there[[start for start, length in zip(starts, rollouts.lengths, strict=True) if length]] = False
    return there


def generalized(
    counted: torch.Tensor,
    of_token: torch.Tensor,
    rewards: torch.Tensor,
    values: torch.Tensor | None,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Generalized advantage estimates (Schulman et al. 2016, arXiv 1506.02438) at counted tokens, 0 elsewhere.

    Tokens that do not count, such as a tool's output, are no steps: what is earned there belongs to the counted token
    before, also where that is in an earlier sequence of the episode. What comes before the first one is nobody's.

    Args:
        counted: Whether each token counts, [tokens].
        of_token: The episode of each token, [tokens].
        rewards: Of each token, [tokens].
        values: Of the state before each token, [tokens]; None for 0. After the last token it is 0.
        gamma: Discount of a token.
        lam: Weight of later errors.
    """
    earned, running, following = (dict.fromkeys(of_token.tolist(), 0.0) for _ in range(3))
    before = [0.0] * len(rewards) if values is None else values.tolist()
    made = [0.0] * len(rewards)
    steps = [*zip(of_token.tolist(), counted.tolist(), rewards.tolist(), before, strict=True)]
    for place, (episode, counts, reward, value) in zip(reversed(range(len(steps))), reversed(steps), strict=True):
        earned[episode] += reward
        if counts:
            error = earned[episode] + gamma * following[episode] - value
            made[place] = running[episode] = error + gamma * lam * running[episode]
            earned[episode], following[episode] = 0.0, value
    return torch.tensor(made, dtype=torch.float64)


def rewards_differ(row: Rollouts) -> bool:
    """Whether some episode's reward differs from the others' of its row; without that a group gives no gradient.

    `stream(..., keep=rewards_differ)` leaves the others out.
    """
    found = episode_rewards(get(row))
    graded = [found.rewards[list(one)] for one in found.rows]
    return any(len({*one[~one.isnan()].tolist()}) > 1 for one in graded)


def overlong(limit: int, margin: int) -> Callable[..., list[float]]:
    """A reward function: 0 up to limit - margin tokens of an answer, then linearly down to -1 at limit and beyond.

    DAPO's soft punishment of long answers (Yu et al. 2025, arXiv 2503.14476).

    ValueError: margin is not from 1 to limit.
    """
    if not 0 < margin <= limit:
        raise ValueError(f"overlong needs 0 < margin <= limit, got limit={limit}, margin={margin}")

    def overlong(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [-min(1.0, max(0.0, (len(ids) - (limit - margin)) / margin)) for ids in completion_ids]

    return overlong
