"""A task with only a reward: continue to count from a digit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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


def report(history: Sequence[float], rollouts: Rollouts) -> None:
    """Print the result: the rewards, the best possible reward, and some answers."""
    graded, texts = rollouts.sequence_rewards(), rollouts.completions or []
    print(
        f"\nreward {history[0]:.2f} -> {graded.mean():.2f}; answers that are right: {(graded == 1).float().mean():.0%}"
    )
    print("1.00 is success: every answer counts on. 0.10 is chance, 0.50 one digit that is right and one that is not.")
    for row, group in zip(rollouts, rollouts.groups(), strict=True):
        print(f"  {(row.prompts or [''])[0]} -> {', '.join(texts[group.start : group.start + 4])}")
