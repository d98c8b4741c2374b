"""`serve` and what goes with it: the contract, which twinkle-http fulfils where it is installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import TYPE_CHECKING, Self

from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import ModuleType


class Server(ABC):
    """A running server; as a context manager it closes at the end of the block.

    Attributes:
        address: Its URL.
        token: The token, if there is one for all; it was made if none was given.
    """

    address: str
    token: str | None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @abstractmethod
    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is closed; returns whether it is.

        Args:
            timeout: Seconds; None for no limit.
        """

    @abstractmethod
    def close(self, drain: float = 60.0) -> None:
        """Take no new calls, wait for the calls in flight, inform the clients, and stop; a second call does nothing.

        Args:
            drain: Seconds to wait for calls in flight.
        """


def serve(
    classes: Iterable[object],
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | Mapping[str, str] | Path | None = None,
    tls: tuple[str, str] | None = None,
    max_body: int = 4 << 30,
    lease: float = 60.0,
    insecure: bool = False,
) -> Server:
    """Serve remote classes of the running session over HTTP, in a thread of this process.

    Args:
        classes: Remote classes that clients may build and call, and components of this session that they may call, by
            the same `instance_id=`; nothing else can be reached.
        host: Address to bind; an address other than loopback needs `tls` or `insecure`.
        port: Port; 0 for any free one.
        token: The token of the clients, one for each tenant by name, or the path of a file of them, as `twinkle serve
            --token-file` reads it. With None it is that of TWINKLE_TOKEN, or is made and shown once on standard error.
        tls: Files of the certificate and of its key.
        max_body: Bytes of one request, at or above 1024.
        lease: Seconds without a sign of life after which a client loses its components and results, above 0.
        insecure: Allow plain HTTP beyond this machine: anyone who sees the traffic has the token.

    Returns:
        The server; it runs until it is closed.

    Raises:
        NotInitializedError: There is no session.
        BackendError: The address is not loopback, and there is neither `tls` nor `insecure`; or it is in use; or
            twinkle-http is not installed.
        ValueError: A token or another option is not valid.
        TypeError: One is neither a remote class nor a component.
    """
    options = {"host": host, "port": port, "token": token, "tls": tls, "insecure": insecure}
    made: Server = _twinkle_http("serve").HttpServer(classes, **options, max_body=max_body, lease=lease)
    return made


def _twinkle_http(what: str) -> ModuleType:
    try:
        return import_module("twinkle_http")
    except ModuleNotFoundError as error:
        if error.name != "twinkle_http":
            raise
        raise BackendError(not_installed(f"{what} needs twinkle-http, which", "twinkle-http")) from None


def not_installed(what: str, distribution: str) -> str:
    """Return what an error says where a distribution of the workspace is missing."""
    return (
        f"{what} is not installed: install {distribution} where twinkle-remote came from: "
        f"a checkout, a folder of wheels or a git URL (in a checkout: pip install ./packages/{distribution})"
    )
