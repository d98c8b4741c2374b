"""Checks: what a call keeps of values of many kinds, and what it refuses because it cannot know."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from tests.conformance.harness import plain
from tests.conformance.subjects.kinds import Growing, Hoard, grow

from twinkle_remote import submit

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


def writes_are_seen_by_nobody_else(harness: Harness) -> None:
    """A value that a caller or a worker writes to is its own: nobody else sees it, in any backend."""
    kinds: tuple[type[Any], ...] = (list,) if harness.served else (list, set, bytearray, deque, Growing)
    for kind in kinds:
        hoard, other, value = harness.build(Hoard, 2), harness.build(Hoard, 2), kind()
        one = [1] * harness.workers(2)
        kept = submit(hoard.keep, value)
        grow(value)
        plain(kept)
        assert harness.each(2, hoard.size()) == [0] * harness.workers(2), "its caller wrote to it"
        assert harness.each(2, hoard.grow()) == one, "each rank has its own"
        assert len(value) == 1, "a worker wrote to it"
        given = submit(hoard.given)
        plain(hoard.grow())
        mine = plain(given)
        assert len(mine) == 1, "its worker wrote to it later"
        grow(mine)
        plain(other.keep(given))
        assert harness.each(2, other.size()) == one, "a reader wrote to it"


CHECKS = (writes_are_seen_by_nobody_else,)
