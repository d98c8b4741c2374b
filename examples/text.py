"""The text that the examples learn from: the language reference in Python's standard library."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from itertools import pairwise
from pydoc_data import topics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

UNKNOWN = "<?>"


@cache
def reference_words() -> tuple[str, ...]:
    """Every word of the reference, in order, in lower case."""
    return tuple(re.findall(r"[a-z]+", "\n".join(topics.topics.values()).lower()))


@cache
def vocabulary(size: int) -> tuple[str, ...]:
    """UNKNOWN and the most frequent words of the reference, `size` in all."""
    return (UNKNOWN, *(word for word, _ in Counter(reference_words()).most_common(size - 1)))


@cache
def _ids(size: int) -> dict[str, int]:
    return {word: i for i, word in enumerate(vocabulary(size))}


def encode(passage: str, size: int) -> list[int]:
    """Ids of the words of a passage, in a vocabulary of `size` words."""
    ids = _ids(size)
    return [ids.get(word, 0) for word in passage.split()]


def decode(ids: Iterable[int], size: int) -> str:
    """The passage of some ids."""
    words = vocabulary(size)
    return " ".join(words[i] for i in ids)


def passages(words: int, every: int) -> list[str]:
    """Passages of `words` words, one starting at every `every`-th word of the reference."""
    text = reference_words()
    return [" ".join(text[start : start + words]) for start in range(0, len(text) - words + 1, every)]


@cache
def _phrases(size: int) -> frozenset[tuple[int, int, int]]:
    ids = encode(" ".join(reference_words()), size)
    return frozenset(phrase for phrase in zip(ids, ids[1:], ids[2:], strict=False) if 0 not in phrase)


def share_of_real_phrases(ids: Sequence[int], size: int) -> float:
    """The share of three-word phrases that occur in the reference and are new, times the share of distinct words.

    A phrase is new if both of its pairs of words occur for the first time in the text. So repeating phrases ("is an
    object is an error is an ...") gives no reward. A phrase with an unknown word does not count.

    Args:
        ids: At least three ids.
        size: Size of the vocabulary.
    """
    pairs = list(pairwise(ids))
    new = [pair not in pairs[:i] for i, pair in enumerate(pairs)]
    phrases = list(zip(ids, ids[1:], ids[2:], strict=False))
    real = _phrases(size)
    counts = [phrase in real and a and b for phrase, a, b in zip(phrases, new, new[1:], strict=False)]
    return sum(counts) / len(phrases) * len(set(ids)) / len(ids)
