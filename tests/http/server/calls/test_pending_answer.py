"""An answer for several requests: one that goes away disturbs no other, and the first answer stays."""

from __future__ import annotations

import asyncio
from functools import partial

from twinkle_http.server.calls.pending_answer import AnswerTimer, PendingAnswer


def test_all_requests_get_the_first_answer() -> None:
    async def run() -> None:
        answer = PendingAnswer((1, 2))
        tasks = [asyncio.ensure_future(answer.data()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert not answer.done()
        answer.set(b"first")
        answer.set(b"second")
        assert await asyncio.gather(*tasks[1:]) == [b"first", b"first"]
        assert tasks[0].cancelled() and await answer.data() == b"first" and answer.done()

    asyncio.run(run())


def test_a_timer_tells_of_each_answer_that_is_late_and_of_no_other() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        began, told = loop.time(), list[tuple[int, float]]()
        answers = [PendingAnswer((1, number)) for number in range(30)]
        timer, over = AnswerTimer(0.05), loop.create_future()

        def late(number: int) -> None:
            told.append((number, loop.time() - began))
            if number == 29:
                over.set_result(None)
            raise ValueError("an error of one holds up no other")

        loop.set_exception_handler(lambda *_: None)
        for number, answer in enumerate(answers):
            timer.add(answer, partial(late, number))
            if number % 3 == 0:
                answer.set(b"")
            elif number % 10 == 5:
                await asyncio.sleep(0.02)
        async with asyncio.timeout(30.0):
            await over
        assert [number for number, _ in told] == [number for number in range(30) if number % 3]
        assert all(seconds >= 0.05 for _, seconds in told)

    asyncio.run(run())
