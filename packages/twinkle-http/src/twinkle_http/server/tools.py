"""The tools of clients next to the session, such as weight syncs between their components."""

from __future__ import annotations

import logging
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from twinkle_http.server.gate import unknown
from twinkle_remote.errors import BackendError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.metadata import EntryPoint

    from twinkle_http.server.clients import RemoteClient
    from twinkle_remote.protocol import SessionTool

_log = logging.getLogger("twinkle.http")
_GROUP = "twinkle.session_tools"


class InstalledTools:
    """The kinds of tools that are installed, by name; a name that a client sends is looked up here and nowhere else."""

    def __init__(self) -> None:
        self._found: Mapping[str, EntryPoint] = {entry.name: entry for entry in entry_points(group=_GROUP)}

    def _kind(self, name: object) -> Callable[..., SessionTool]:
        """The class of a tool.

        Raises:
            BackendError: It is not installed.
        """
        found = self._found.get(str(name))
        if found is None:
            known = ", ".join(sorted(self._found)) or "none"
            raise BackendError(f"the server has no tool {str(name)[:80]!a}; it has {known}")
        return cast("Callable[..., SessionTool]", found.load())

    def call(
        self, client: RemoteClient, tool: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """The work that a request about a tool asks for: to make it, call it, or close it.

        Raises:
            RefusedError: Its token has too many tools.
            BackendError: It is not installed.
        """
        if not args:
            raise unknown("method", "")
        if tool not in client.tools:
            client.use.check("tools")
            kind = self._kind(args[0])

            def make() -> None:
                client.tools[tool] = kind(*args[1:], **kwargs)
                client.use.add("tools")

            return make
        if args[0] == "close":
            client.use.add("tools", -1)
            return client.tools.pop(tool).close
        return lambda: client.tools[tool].call(str(args[0]), *args[1:])

    def close(self, client: RemoteClient) -> None:
        """Close all tools of a client."""
        while client.tools:
            _, made = client.tools.popitem()
            client.use.add("tools", -1)
            try:
                made.close()
            except TwinkleError as error:
                _log.warning("a tool of a client that is gone was not closed: %s", ascii(str(error)[:300]))
