"""A component whose methods call those of others, and wait for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.get import get
from twinkle_remote.call.submit import submit
from twinkle_remote.component.decorators import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@remote_class()
class Node:
    """Calls and waits."""

    @remote_function(dispatch="all", collect="first")
    def hint(self) -> str:
        """Nothing."""
        return "hint"

    @remote_function(dispatch="all", collect="first")
    def chain(self, others: Sequence[Node]) -> str:
        """Call the first of the others with the rest, and wait; the last one is only asked."""
        first, *rest = others
        return get(first.chain(rest) if rest else submit(first.hint))

    @remote_function(dispatch="all", collect="first")
    def through(self, maker: Node, user: Node, last: Node) -> str:
        """Wait for a call whose argument is another one's lazy result."""
        return get(user.use(maker.chain([last])))

    @remote_function(dispatch="all", collect="first")
    def use(self, value: Any) -> str:
        """The value."""
        return str(value)

    @remote_function(dispatch="all", collect="first")
    def takes(self, maker: Node, last: Node) -> list[str]:
        """The items of another one's generator, which asks."""
        return [str(get(item)) for item in maker.items(last)]

    @remote_function(dispatch="all")
    def items(self, last: Node) -> Iterator[str]:
        """Ask for each item."""
        yield get(last.hint())

    @remote_function(dispatch="all", collect="first")
    def leaves(self, other: Node, itself: Node, seconds: float) -> str:
        """Have another one call back, and go on: that is no circle."""
        submit(other.chain, [itself])
        time.sleep(seconds)
        return "left"

    @remote_function(dispatch="all", collect="first")
    def tries(self, other: Node, itself: Node, seconds: float) -> str:
        """Give up after some seconds, which ends the circle."""
        try:
            return get(submit(other.chain, [itself]), seconds)
        except TimeoutError:
            return "gave up"

    @remote_function(dispatch="all", collect="first")
    def sleeps(self, seconds: float) -> str:
        """Take its time."""
        time.sleep(seconds)
        return "slept"

    @remote_function(dispatch="all", collect="first")
    def waits(self, other: Node, seconds: float) -> str:
        """Wait for another one that takes its time."""
        return get(other.sleeps(seconds))
