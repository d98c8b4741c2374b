"""Small writes arrive together and in order; nothing is held when the loop goes on, at a close, or before big ones."""

from __future__ import annotations

import asyncio
from typing import Any

from twinkle_remote.http.server.gathered_writes import GatheredWrites


class Written(asyncio.Transport):
    """Keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[Any] = []

    def write(self, data: Any) -> None:
        self.parts.append(bytes(data))

    def close(self) -> None:
        self.parts.append("closed")

    def abort(self) -> None:
        self.parts.append("aborted")


def test_small_writes_are_sent_together() -> None:
    async def run() -> None:
        inner = Written()
        outer = GatheredWrites(inner)
        outer.write(b"head")
        outer.write(b"body")
        assert inner.parts == []
        outer.flush()
        assert inner.parts == [b"headbody"]
        outer.write(b"later")
        await asyncio.sleep(0)
        assert inner.parts == [b"headbody", b"later"]
        outer.write(b"head")
        outer.write(bytes(100_000))
        assert inner.parts[2:] == [b"head", bytes(100_000)]
        outer.write(b"last")
        outer.close()
        assert inner.parts[4:] == [b"last", "closed"]
        outer.write(b"lost")
        outer.abort()
        await asyncio.sleep(0)
        assert inner.parts[6:] == ["aborted"]

    asyncio.run(run())
