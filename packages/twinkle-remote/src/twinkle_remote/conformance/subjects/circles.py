"""A component whose methods call those of others, and wait for them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, cast

from twinkle_remote.call.lazy_values.get import get
from twinkle_remote.call.submit import submit
from twinkle_remote.component.decorators import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence


@remote_class()
class Node:
    """Calls and waits."""

    @remote_function(dispatch="all", collect="first")
    def hint(self) -> str:
        """Do nothing."""
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


@remote_class(concurrency=2)
class AsyncNode:
    """Calls and awaits, two at once."""

    @remote_function(execute="first", collect="first")
    async def hint(self) -> str:
        """Do nothing."""
        return "hint"

    @remote_function(execute="first", collect="first")
    def plain_hint(self) -> str:
        """Do nothing, in turn."""
        return "hint"

    @remote_function(execute="first", collect="first")
    async def back_and_forth(self, other: AsyncNode, itself: AsyncNode, depth: int) -> str:
        """Have another one have this one have it do the same, more often than there are places."""
        return str(await submit(other.back_and_forth, itself, other, depth - 1)) if depth else "end"

    @remote_function(execute="first", collect="first")
    async def together(self, other: AsyncNode, itself: AsyncNode, depth: int) -> str:
        """The same, with a call that ends."""
        if not depth:
            return "end"
        return str(await asyncio.gather(submit(other.together, itself, other, depth - 1), submit(other.hint)))

    @remote_function(execute="first", collect="first")
    async def as_a_group(self, other: AsyncNode, itself: AsyncNode, depth: int) -> str:
        """The same in tasks of its own."""
        if not depth:
            return "end"

        async def ask() -> str:
            return str(await submit(other.as_a_group, itself, other, depth - 1))

        async with asyncio.TaskGroup() as group:
            asked = group.create_task(ask())
        return asked.result()

    @remote_function(execute="first", collect="first")
    def waits(self, other: AsyncNode, itself: AsyncNode) -> str:
        """Wait in turn for a coroutine that needs the turn."""
        return str(get(submit(other.asks, itself)))

    @remote_function(execute="first", collect="first")
    async def asks(self, other: AsyncNode) -> str:
        """Await what another one does in turn."""
        return await submit(other.plain_hint)

    @remote_function(execute="first", collect="first")
    async def holds_the_loop(self, other: AsyncNode, itself: AsyncNode) -> str:
        """Wait without an await for a coroutine that calls this one."""
        return str(get(submit(other.calls_back, itself)))

    @remote_function(execute="first", collect="first")
    async def calls_back(self, other: AsyncNode) -> str:
        """Await another coroutine."""
        return await submit(other.hint)

    @remote_function(execute="first", collect="first")
    async def items(self, other: AsyncNode) -> AsyncIterator[str]:
        """Await what another one does in turn, for each item."""
        yield await submit(other.plain_hint)

    @remote_function(execute="first", collect="first")
    def takes(self, other: AsyncNode, itself: AsyncNode) -> str:
        """Wait in turn for items that need the turn."""
        return "".join([str(get(item)) for item in cast("Any", other.items(itself))])

    @remote_function(execute="first", collect="first")
    async def gives_up(self, other: AsyncNode, itself: AsyncNode, seconds: float, depth: int) -> str:
        """Ask for the same more often than there are places; give up after some seconds, which ends the circle."""
        try:
            asked = submit(other.gives_up, itself, other, seconds, depth - 1) if depth else submit(other.hint)
            return await asyncio.wait_for(asked, seconds)
        except TimeoutError:
            return "gave up"

    @remote_function(execute="first", collect="first")
    async def sleeps(self, seconds: float) -> str:
        """Take its time."""
        await asyncio.sleep(seconds)
        return "slept"

    @remote_function(execute="first", collect="first")
    async def calls_and_sleeps(self, other: AsyncNode, itself: AsyncNode, seconds: float, depth: int) -> str:
        """Take its time, and ask for the same, as often as there are places."""
        asked = submit(other.calls_and_sleeps, itself, other, seconds, depth - 1) if depth else submit(other.hint)
        await asyncio.sleep(seconds)
        return await asked
