"""Messages are handed out in the order in which they were sent, also where one is lost."""

from __future__ import annotations

import asyncio

import pytest

from twinkle_ray.by_node import message_order
from twinkle_ray.by_node.message_order import MessageOrder, PassedTurnError


async def _hand_out(order: MessageOrder, number: int, seen: list[int]) -> None:
    await order.wait(number)
    seen.append(number)
    order.done(number)


def test_messages_wait_for_those_before_them() -> None:
    async def run() -> list[int]:
        order, seen = MessageOrder(), list[int]()
        await asyncio.wait_for(asyncio.gather(*[_hand_out(order, number, seen) for number in (3, 1, 0, 2, 4)]), 10)
        return seen

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("skipped_first", [True, False])
def test_a_lost_message_is_skipped(skipped_first: bool) -> None:
    async def run() -> list[int]:
        order, seen = MessageOrder(), list[int]()
        if skipped_first:
            order.skip(1)
        later = asyncio.gather(*[_hand_out(order, number, seen) for number in (2, 0)])
        await asyncio.sleep(0)
        if not skipped_first:
            order.skip(1)
        await asyncio.wait_for(later, 10)
        return seen

    assert asyncio.run(run()) == [0, 2]


def test_without_word_a_lost_message_holds_the_others_for_a_while_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_order, "_LATEST_SECONDS", 0.05)

    async def run() -> list[int]:
        order, seen = MessageOrder(), list[int]()
        await asyncio.wait_for(_hand_out(order, 1, seen), 10)
        with pytest.raises(PassedTurnError, match="message 0 came after message 1"):
            await order.wait(0)
        return seen

    assert asyncio.run(run()) == [1]
