"""The tools of clients next to the session, such as weight syncs between their components."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from twinkle_http.server.requests.body import RefusedError, unknown
from twinkle_remote.errors import BackendError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from twinkle_remote.protocol import SessionTool

_log = logging.getLogger("twinkle.http")
_GROUP = "twinkle.session_tools"
MOST_TOOLS = 100  # of one client


class InstalledTools:
    """The kinds of tools that are installed, by name; a name that a client sends is looked up here and nowhere else."""

    def __init__(self) -> None:
        self._found: Mapping[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=_GROUP)}

    def kind(self, name: object) -> Callable[..., SessionTool]:
        """The class of a tool.

        Raises:
            BackendError: It is not installed.
        """
        found = self._found.get(str(name))
        if found is None:
            known = ", ".join(sorted(self._found)) or "none"
            raise BackendError(f"the server has no tool {str(name)[:80]!a}; it has {known}")
        return cast("Callable[..., SessionTool]", found.load())


class ClientTools:
    """The tools of one client, by the ids that it gave them."""

    def __init__(self) -> None:
        self._made: dict[str, SessionTool] = {}

    def call(
        self, kinds: InstalledTools, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """Do what a request about a tool asks: make it, call it, or close it.

        Raises:
            RefusedError: The client has too many tools.
            BackendError: It is not installed.
        """
        if tool not in self._made:
            if len(self._made) >= MOST_TOOLS:
                raise RefusedError(429, f"a client has at most {MOST_TOOLS} tools", "TooMany")
            kind = kinds.kind(args[0] if args else "")

            def make() -> None:
                self._made[tool] = kind(*args[1:], **kwargs)

            return make
        if not args:
            raise unknown("method", "")
        if args[0] == "close":
            return self._made.pop(tool).close
        return lambda: self._made[tool].call(str(args[0]), *args[1:])

    def close(self) -> None:
        """Close all."""
        while self._made:
            _, made = self._made.popitem()
            try:
                made.close()
            except TwinkleError as error:
                _log.warning("a tool of a client that is gone was not closed: %s", ascii(str(error)[:300]))
