"""Who may ask: tokens of tenants, and the names by which the server may be addressed."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from typing import TYPE_CHECKING

from twinkle_http.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_LEAST_CHARACTERS = 8


class Auth:
    """The tenants of a server, by their tokens.

    Args:
        token: One token, or the token of each tenant; None makes one.

    Attributes:
        token: The token that was made; None if tokens were given.

    Raises:
        ValueError: A token is short, given twice, or not of ASCII characters that a header can hold.
    """

    def __init__(self, token: str | Mapping[str, str] | None) -> None:
        self.token = secrets.token_urlsafe(32) if token is None else None
        given = {"": self.token or token} if token is None or isinstance(token, str) else dict(token)
        for tenant, one in given.items():
            if not isinstance(one, str) or len(one) < _LEAST_CHARACTERS or not one.isascii() or not one.isprintable():
                raise ValueError(
                    f"the token of tenant {tenant!r} is not valid: it has at least {_LEAST_CHARACTERS} printable "
                    "ASCII characters"
                )
        self._tokens = {tenant: str(one).encode("ascii") for tenant, one in given.items()}
        if len(set(self._tokens.values())) != len(self._tokens):
            raise ValueError("two tenants have the same token: give each its own token")

    def tenant(self, header: bytes) -> str | None:
        """The tenant of an Authorization header; None if its token is not known. Takes the same time for all."""
        scheme, _, given = header.partition(b" ")
        found = None
        for tenant, token in self._tokens.items():
            if hmac.compare_digest(token, given.strip()):
                found = tenant
        return found if scheme.lower() == b"bearer" else None

    def watcher(self, tenant: str | None) -> str | None:
        """The tenant who sees the metrics of all: the given one, or the only one.

        Raises:
            ValueError: There is no such tenant.
        """
        if tenant is not None and tenant not in self._tokens:
            known = ", ".join(map(repr, self._tokens))
            raise ValueError(f"metrics_of_all={tenant!r} is the name of a tenant; there are {known}")
        return next(iter(self._tokens)) if len(self._tokens) == 1 else tenant

    def only(self) -> str:
        """The one token; empty if there are several."""
        tokens = list(self._tokens.values())
        return tokens[0].decode("ascii") if len(tokens) == 1 else ""


def own_hosts(host: str, port: int, others: Iterable[str]) -> frozenset[bytes]:
    """The Host headers that name a server.

    Args:
        host: The host that it is bound to.
        port: Its port.
        others: Further names, as of a proxy before it; with or without a port.
    """
    names = {host}
    if is_loopback(host):
        names |= {"localhost", "127.0.0.1", "::1"}
    elif _is_any(host):
        names |= {socket.gethostname(), socket.getfqdn(), "localhost", "127.0.0.1", "::1"}
    shown = {f"[{name}]" if ":" in name else name for name in names}
    found = {f"{name}:{port}" for name in shown} | set(others)
    if port in (80, 443):
        found |= shown
    return frozenset(name.lower().encode("idna" if not name.isascii() else "ascii") for name in found)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
