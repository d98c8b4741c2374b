"""Where a server is, for tests over sockets of their own."""

from __future__ import annotations

from urllib.parse import urlsplit


class Place:
    """Where a server is.

    Args:
        address: Its URL.

    Attributes:
        place: Host and port.
        host: The same as a Host header.
    """

    def __init__(self, address: str) -> None:
        url = urlsplit(address)
        assert url.hostname and url.port
        self.place = url.hostname, url.port
        self.host = f"{url.hostname}:{url.port}"
