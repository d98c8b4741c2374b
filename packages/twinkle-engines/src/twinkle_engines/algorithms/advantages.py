"""Advantages: how much better what was written is than what was to be expected, from the rewards of all episodes.

An episode is one sequence, or those of a row that have one number in the column "episode" by sequence. In the formulas
R is the reward of an episode, and r_t what came at or after its counted token t, before the next one.
"""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import torch

from twinkle_remote import get, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_engines.batches.rollouts import Rollouts


Estimator: TypeAlias = Literal["grpo", "rloo", "remax", "reinforce++", "reinforce++baseline", "gae"]
ESTIMATORS: dict[str, tuple[str, ...]] = {
    "grpo": (),
    "rloo": (),
    "remax": ("baselines",),
    "reinforce++": ("gamma",),
    "reinforce++baseline": (),
    "gae": ("gamma", "lam"),
}
"""The estimators, and which of the options that not all have each reads."""
OF_THE_BATCH = ("reinforce++", "reinforce++baseline", "gae")
"""Those that `scale` whitens over the whole batch."""
_EPSILON = 1e-4


def advantages(
    rollouts: Rollouts,
    how: Estimator = "grpo",
    *,
    scale: bool = True,
    gamma: float = 1.0,
    lam: float = 0.95,
    kl: float = 0.0,
    baselines: Sequence[float] | str | None = None,
    truncated: Literal["keep", "mask"] = "keep",
) -> Rollouts:
    """The rollouts with an advantage at each token, made of the rewards of their episodes.

    What has no reward (NaN: no function graded it) counts for nothing, and its advantage is 0.

    Args:
        rollouts: With rewards; a row is a group. In a remote function, these are one data rank's.
        how: "grpo": (R - mean) / (std + 1e-4) in the row, std with n - 1 (arXiv 2402.03300); 0 for a row of one.
            "rloo": R - the mean of the row's others (arXiv 2402.14740); 0 where no other one has a reward.
            "remax": R - the reward of the row's greedy answer (arXiv 2310.10505).
            "reinforce++": sum of gamma^(s - t) r_s over s >= t, whitened (arXiv 2501.03262).
            "reinforce++baseline": R - the mean of the row, whitened (as there).
            "gae": sum of (gamma lam)^(s - t) (r_s + gamma V_(s+1) - V_s), V the column `values`, whitened (arXiv
            1506.02438); `returns` are written too, advantages before that plus V.
        scale: False leaves out the division by the std ("grpo", Dr. GRPO, arXiv 2503.20783), or the whitening over all
            counted tokens, which `forward_backward(whiten=True)` does in its place.
        gamma: Discount of a token, in [0, 1].
        lam: How far "gae" looks ahead, in [0, 1]; 1 is the return.
        kl: This much of `logprobs` - `ref_logprobs` is taken off the reward of each counted token.
        baselines: The rewards of the greedy answers, by row; or the name of a column by row that has them.
        truncated: "mask" has episodes with a sequence that ended by its "length" not count; their rewards do.

    Raises:
        KeyError: A column is missing.
        ValueError: There are no rewards, one is infinite, an option is out of its range or not read, or "rloo" has a
            row of one episode.
    """
    options = Options(how, scale, gamma, lam, kl, baselines, truncated)
    check_options(options)
    return _estimated(get(rollouts), options)


class Options(NamedTuple):
    """The options of `advantages`."""

    how: Estimator = "grpo"
    scale: bool = True
    gamma: float = 1.0
    lam: float = 0.95
    kl: float = 0.0
    baselines: Sequence[float] | str | None = None
    truncated: str = "keep"


def _estimated(rollouts: Rollouts, options: Options) -> Rollouts:
    how, given = options.how, rollouts.sequence_rewards()
    if bool(rollouts.tokens["rewards"].isinf().any()):
        raise ValueError(
            "a sequence has an infinite reward, with which none can be compared: use a large finite one, or NaN (None "
            "in a reward function) for no vote"
        )
    episodes = episode_rewards(rollouts)
    if options.truncated == "mask":
        rollouts = _masked(rollouts, episodes)
    counted = counted_tokens(rollouts)
    of_token = episodes.of_sequence.repeat_interleave(torch.tensor(rollouts.lengths, dtype=torch.int64))
    rewards, tokens = episodes.rewards, rollouts.tokens["rewards"].double().cpu().nan_to_num(0.0)
    if options.kl:
        own, reference = (_by_token(rollouts, name) for name in ("logprobs", "ref_logprobs"))
        penalty = torch.where(counted, options.kl * (own - reference), 0)
        tokens = tokens - penalty
        rewards = rewards - torch.zeros_like(rewards).index_add(0, of_token, penalty)
    if how in ("reinforce++", "gae"):
        values = None if how == "reinforce++" else _by_token(rollouts, "values")
        lam = 1.0 if values is None else options.lam
        made = generalized(counted, of_token, tokens, values, options.gamma, lam)
        made = torch.where(rewards[of_token].isnan(), 0, made)
        if values is not None:
            returns = torch.where(counted, made + values, 0).float()
            rollouts = rollouts.replace(returns=list(torch.split(returns, rollouts.lengths)))
    else:
        greedy: Any = options.baselines
        greedy = rollouts.column(greedy) if isinstance(greedy, str) else greedy
        made = _compared(rewards, episodes.rows, how, options.scale, greedy)[of_token]
    if options.scale and how in OF_THE_BATCH:
        made = whitened(made, counted & ~rewards[of_token].isnan())
    found = made.to(given.dtype).to(given.device)
    return rollouts.replace(advantages=list(torch.split(found, rollouts.lengths)))


def _by_token(rollouts: Rollouts, name: str) -> torch.Tensor:
    return torch.cat([*rollouts.column(name), torch.empty(0)]).double().cpu()


@remote_class()
class Advantages:
    """The function `advantages` as a stage of a stream, whose rows stay on the workers.

    Args:
        how: As for `advantages`. What needs the whole batch takes scale=False, and `forward_backward(whiten=True)`.
        options: As for `advantages`; baselines are the name of a column by row.

    Raises:
        ValueError: It needs the whole batch, or an option is out of its range or not read.
    """

    def __init__(self, how: Estimator = "grpo", **options: Any) -> None:
        self._options = Options(how, **options)
        check_options(self._options)
        if self._options.scale and how in OF_THE_BATCH:
            raise ValueError(
                f"{how!r} with scale whitens over the whole batch, and a stage has some rows: use scale=False, and "
                "forward_backward(whiten=True)"
            )

    @remote_function(dispatch="slice_dp", collect="flatten")
    def add(self, rollouts: Rollouts) -> Rollouts:
        """The rollouts with advantages; see `advantages`, also for its errors."""
        return _estimated(rollouts, self._options)


def check_options(options: Options) -> None:
    """Raise ValueError for an unknown word, a number out of its range, or an option that is not read."""
    how, gamma, lam = options.how, options.gamma, options.lam
    if how not in ESTIMATORS:
        raise ValueError(f"advantages are {', '.join(map(repr, ESTIMATORS))}, not {how!r}")
    if options.truncated not in ("keep", "mask") or not (0 <= gamma <= 1 and 0 <= lam <= 1 and options.kl >= 0):
        raise ValueError(f"truncated is 'keep' or 'mask', kl >= 0, gamma and lam in [0, 1]: got {options}")
    for name in ("gamma", "lam", "baselines"):
        if name not in ESTIMATORS[how] and getattr(options, name) != Options._field_defaults[name]:
            raise ValueError(f"{how!r} reads no {name}: leave it out")
    if how == "remax" and options.baselines is None:
        raise ValueError("'remax' compares with the greedy answers' rewards: give baselines=, one for each row")


def _compared(
    rewards: torch.Tensor, rows: list[range], how: str, scale: bool, baselines: Sequence[float] | None
) -> torch.Tensor:
    """Advantages of episodes within their rows, [episodes]."""
    made = torch.zeros_like(rewards)
    if baselines is not None and len(baselines) != len(rows):
        raise ValueError(f"baselines has {len(baselines)} rewards, but there are {len(rows)} rows: one for each")
    for row, group in enumerate(rows):
        every = torch.tensor(list(group), dtype=torch.int64)
        graded = every[~rewards[every].isnan()]
        own = rewards[graded]
        if how == "rloo" and len(group) == 1:
            raise ValueError(
                f"rloo compares an episode with the others of its row, but row {row} has one sequence; sample n=2 or "
                "more for each prompt, or use 'reinforce++'"
            )
        if how == "remax" and baselines is not None:
            made[graded] = own - float(baselines[row])
        elif how == "rloo" and len(own) > 1:
            made[graded] = own - (own.sum() - own) / (len(own) - 1)
        elif how != "rloo" and len(own):
            centred = own - own.mean()
            made[graded] = centred / (own.std() + _EPSILON) if how == "grpo" and scale and len(own) > 1 else centred
    return made


def _masked(rollouts: Rollouts, episodes: EpisodeRewards) -> Rollouts:
    """The rollouts without the tokens of episodes that were cut off."""
    cut = {int(n) for n, end in zip(episodes.of_sequence, rollouts.column("finish"), strict=True) if end == "length"}
    masks = rollouts.mask or [torch.ones_like(ids) for ids in rollouts.ids]
    numbers = episodes.of_sequence.tolist()
    kept = [torch.zeros_like(one) if n in cut else one for one, n in zip(masks, numbers, strict=True)]
    return rollouts.replace(mask=kept)


def whitened(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Values less their mean, over their spread (n), both over the counted ones; 0 elsewhere."""
    own = values[counted]
    spread = own.std(unbiased=False) if len(own) else own.sum()
    return torch.where(counted, (values - own.mean()) / (spread + 1e-8), 0)


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
