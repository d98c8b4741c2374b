"""Advantages: how much better a sequence is than others, from the rewards of all."""

from __future__ import annotations

from typing import Literal, get_args

import torch

from twinkle_engines.batches.given import flag, instance
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_mesh import with_known_names

Estimator = Literal["grpo", "rloo", "reinforce++"]
_EPSILON = 1e-4


@with_known_names
def advantages(rollouts: Rollouts, how: Estimator = "grpo", scale: bool = True) -> Rollouts:
    """The rollouts with an advantage at each token, the same for a whole sequence, made of the sequences' rewards.

    A sequence without a reward (NaN: no function graded it) counts for nothing, and its advantage is 0.

    Args:
        rollouts: With rewards; a row is a group. In a remote function, these are one data rank's.
        how: With r the reward of a sequence, in the row's n sequences:
            "grpo": (r - mean) / (std + 1e-4), std with n - 1 (GRPO, arXiv 2402.03300); 0 for a row of one.
            "rloo": r - the mean of the row's others, unscaled (arXiv 2402.14740); 0 where no other one has a reward.
            "reinforce++": as "grpo", but over the sequences of all rows (arXiv 2501.03262).
        scale: False leaves out the division by the std (Dr. GRPO, arXiv 2503.20783).

    Raises:
        TypeError: They are no rollouts, or `scale` is no flag.
        ValueError: There are no rewards, one is infinite, it is another word, or "rloo" has a row of one sequence.
    """
    rollouts, scale = instance(Rollouts, "rollouts", rollouts), flag("scale", scale)
    given = rollouts.sequence_rewards()
    _check_finite(rollouts)
    rewards = given.double()  # in float32 the mean of equal rewards is next to them, and the std as small
    if str(how) not in get_args(Estimator):
        raise ValueError(f"advantages are 'grpo', 'rloo' or 'reinforce++', not {how!r}")
    groups = [torch.tensor(list(group), dtype=torch.int64) for group in rollouts.groups()]
    if how == "reinforce++":
        groups = [torch.arange(len(rewards))]
    made = torch.zeros_like(rewards)
    for row, group in enumerate(groups):
        graded = group[~rewards[group].isnan().to(group.device)]
        if not len(graded):
            continue
        if how == "rloo":
            _check_others(len(group), row)
            made[graded] = _beyond_the_others(rewards[graded])
        else:
            made[graded] = _beyond_the_mean(rewards[graded], scale)
    found = made.to(given.dtype)
    if not bool(found.isfinite().all()):
        i = int((~found.isfinite()).nonzero()[0])
        raise ValueError(
            f"the rewards of sequence {i} and its others, such as {float(given[i])}, are too large to take their "
            f"differences in {str(given.dtype).removeprefix('torch.')}: use rewards of smaller size"
        )
    return rollouts.replace(advantages=list(found))


def _check_finite(rollouts: Rollouts) -> None:
    every = rollouts.tokens["rewards"]
    infinite = [i for i, one in enumerate(torch.split(every, rollouts.lengths)) if bool(one.isinf().any())]
    if infinite:
        i = infinite[0]
        row = next(row for row, group in enumerate(rollouts.groups()) if i in group)
        raise ValueError(
            f"sequence {i} (row {row}) has an infinite reward, and no sequence can be compared with it: use a large "
            "finite reward, or NaN (None in a reward function) for no vote"
        )


def _beyond_the_mean(rewards: torch.Tensor, scale: bool) -> torch.Tensor:
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + _EPSILON) if scale and len(rewards) > 1 else centred


def _check_others(count: int, row: int) -> None:
    if count == 1:
        raise ValueError(
            f"rloo compares a sequence with the others of its row, but row {row} has one sequence; sample n=2 or more "
            "for each prompt, or use 'reinforce++'"
        )


def _beyond_the_others(rewards: torch.Tensor) -> torch.Tensor:
    others = len(rewards) - 1
    return rewards - (rewards.sum() - rewards) / others if others else torch.zeros_like(rewards)
