"""Tools that work next to a session that this process does not hold itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_remote.sessions.current import active

if TYPE_CHECKING:
    from twinkle_remote.protocol.session_tools import SessionTool


def session_tool(name: str, *args: Any, **kwargs: Any) -> SessionTool | None:
    """A tool that works where the components are, if their session is another process's; None if it is this one's.

    Args:
        name: Name of an entry point of `twinkle.session_tools` that is installed there.
        *args: Arguments of the tool: components, and values that travel.
        **kwargs: Keyword arguments likewise.

    Raises:
        DispatchError: An argument does not travel.
        BackendError: There is no such tool.
    """
    runtime = active()
    return None if runtime is None or runtime.served is None else runtime.served.tool(name, args, kwargs)
