"""A task with only a reward: continue to count from a digit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle.engines import mismatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle.engines import Rollouts

PROMPTS = [{"prompt": f"Count on: {digit}", "digit": digit} for digit in range(10)]


def counts_on(completions: list[str], digit: list[int], **_: Any) -> list[float]:
    """The share of the two right words at their place; an answer that ignores the digit gets 0.1."""
    graded = []
    for text, first in zip(completions, digit, strict=True):
        words, right = text.split(), [str((first + 1) % 10), str((first + 2) % 10)]
        graded.append(sum(map(str.__eq__, words, right)) / max(len(words), 2))
    return graded


def figures(rollouts: Rollouts) -> list[tuple[float, int]]:
    """The mean reward and the oldest version of each row, computed where the rows are."""
    return [(row.sequence_rewards().mean().item(), int(row.tokens["versions"].min())) for row in rollouts]


def report(history: Sequence[float], rollouts: Rollouts) -> None:
    """Print the result: the rewards, the best possible reward, some answers, and how the two engines agree."""
    graded, texts = rollouts.sequence_rewards(), rollouts.completions or []
    print(
        f"\nreward {history[0]:.2f} -> {graded.mean():.2f}; answers that are right: {(graded == 1).float().mean():.0%}"
    )
    print("mean reward by step, 0 to 1: " + "".join("▁▂▃▄▅▆▇█"[min(int(one * 8), 7)] for one in history))
    print("1.00 is success: every answer counts on. 0.10 is chance, 0.50 one digit that is right and one that is not.")
    for row, group in zip(rollouts, rollouts.groups(), strict=True):
        print(f"  {(row.prompts or [''])[0]} -> {', '.join(texts[group.start : group.start + 4])}")
    ratio = mismatch(rollouts)
    print(f"the sampler's probabilities against the trainer's: ratio {ratio['mean']:.6f}, worst {ratio['worst']:.6f}")
