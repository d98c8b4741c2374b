"""A transport that sends the head of an answer together with a small body, so that the client reads once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import BaseProtocol

_SMALL = 16 * 1024  # bytes


class GatheredWrites(asyncio.Transport):
    """A transport before another one.

    Small writes are sent together: by `flush`, or when the event loop goes on.

    Args:
        transport: The other one.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []

    def write(self, data: Any) -> None:
        """Send bytes, or hold them for a moment."""
        if 0 < len(data) <= _SMALL:
            if not self._held:
                self._loop.call_soon(self.flush)
            self._held.append(data)
            return
        self.flush()
        if data:
            self._transport.write(data)

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            data, self._held = b"".join(self._held), []
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection after what is held was sent."""
        self.flush()
        self._transport.close()

    def abort(self) -> None:
        """Close it at once."""
        self._held = []
        self._transport.abort()

    def is_closing(self) -> bool:
        """Whether it is closed or being closed."""
        return self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """What is known of the connection."""
        return self._transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """Bytes that were written and not sent."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def pause_reading(self) -> None:
        """Take no more bytes for now."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._transport.resume_reading()

    def is_reading(self) -> bool:
        """Whether bytes are taken."""
        return self._transport.is_reading()

    def set_protocol(self, protocol: BaseProtocol) -> None:
        """Have another protocol take the bytes."""
        self._transport.set_protocol(protocol)

    def get_protocol(self) -> BaseProtocol:
        """What takes the bytes."""
        return self._transport.get_protocol()
