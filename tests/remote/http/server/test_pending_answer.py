"""An answer for several requests: one that goes away disturbs no other, and the first answer stays."""

from __future__ import annotations

import asyncio

from twinkle_remote.http.server.pending_answer import PendingAnswer


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
