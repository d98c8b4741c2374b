"""The part of a session's runtime that a call in flight uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from twinkle_remote.protocol.backend import Backend


class CallRuntime(Protocol):
    """The part of the runtime that a call uses."""

    @property
    def backend(self) -> Backend:
        """The backend of the call."""

    @property
    def closed(self) -> bool:
        """Whether the session has ended, so that no more answers arrive."""

    def refusal(self, what: str) -> str:
        """The error text for reading `what`, the result of a call, after the session has ended."""

    def call_completed(self, call: Any) -> None:
        """Called when every worker has answered, or when the lazy result of a failed call is released."""

    def call_seen(self, call: Any) -> None:
        """Called when the failure of a call is raised to a caller."""
