"""The interface of what works on whole components from the program that holds their session, such as a weight sync."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping


class SessionTool(Protocol):
    """Works on components where their session is; a client of a served session uses it by name.

    Its class is an entry point of `twinkle.session_tools`, and is called with the arguments of `session_tool`.
    """

    def call(self, method: str, *args: Any) -> Any:
        """Do something.

        Args:
            method: One of the names that it knows.
            *args: Plain values.

        Raises:
            ValueError: It knows no such method.
        """

    def close(self) -> None:
        """Give back what it holds; called once, when its client closes it or is gone."""


@runtime_checkable
class ToolBackend(Protocol):
    """A backend whose session is another process's, with tools next to it."""

    def tool(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SessionTool:
        """A tool next to the session; see `session_tool`."""
