"""The stub of a server's classes, from its address."""

from __future__ import annotations

from twinkle_remote.http.client.connection import Connection
from twinkle_remote.http.stub.source import source


def stub_of(address: str, token: str, *, tls: str | None = None, insecure: bool = False) -> str:
    """The source of a stub of the classes that a server serves.

    Args:
        address: URL of the server.
        token: Its token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.

    Raises:
        TwinkleError: The server cannot be reached, refuses the request, or tells of its classes what is not valid.
    """
    connection = Connection(address, token, tls=tls, insecure=insecure, patience=10.0)
    return source(connection.json("/classes"), address)
