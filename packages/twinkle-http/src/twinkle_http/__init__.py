"""HTTP: the components of a session, served to clients that hold a token, and called by them as on any backend."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_http.client.backend import HttpBackend
    from twinkle_http.server.serve import serve
    from twinkle_http.stub.source import stub_of

__version__ = "0.1.0"

__all__ = ["HttpBackend", "serve", "stub_of"]

_HOMES = {"HttpBackend": "client.backend", "serve": "server.serve", "stub_of": "stub.source"}


def __getattr__(name: str) -> object:
    """Names are loaded on first use: a client needs no server."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    value: object = getattr(import_module(f"twinkle_http.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
