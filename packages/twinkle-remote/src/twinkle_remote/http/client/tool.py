"""A tool beside the server's session, as its client uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class ServedTool:
    """A tool at the server.

    Args:
        name: Its id there.
        ask: Sends a request about it and waits for the answer.
    """

    def __init__(self, name: str, ask: Callable[[str, tuple[Any, ...], Mapping[str, Any]], Any]) -> None:
        self._name = name
        self._ask = ask

    def call(self, method: str, *args: Any) -> Any:
        """Do something, and wait for its end."""
        return self._ask(self._name, (method, *args), {})

    def close(self) -> None:
        """Give back what it holds."""
        self._ask(self._name, ("close",), {})

    def __repr__(self) -> str:
        return f"<{self._name} at the server>"
