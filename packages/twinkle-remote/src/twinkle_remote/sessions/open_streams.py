"""The open streams of a session: they learn of new versions of weights, and end with the session."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twinkle_remote.protocol.component import Component


class OpenStream(Protocol):
    """What a session knows of a stream."""

    def weights_arrived(self, component: Component) -> None:
        """A component has new weights."""

    def close(self) -> None:
        """End the stream's threads."""


class OpenStreams:
    """The open streams of one session."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[OpenStream] = weakref.WeakSet()

    def add(self, stream: OpenStream) -> None:
        """A stream begins to work."""
        self._streams.add(stream)

    def remove(self, stream: OpenStream) -> None:
        """A stream is closed."""
        self._streams.discard(stream)

    def weights_arrived(self, component: Component) -> None:
        """Tell all streams that a component has new weights.

        Args:
            component: The component whose weights were written.
        """
        for stream in list(self._streams):
            stream.weights_arrived(component)

    def close(self) -> None:
        """Close all streams."""
        for stream in list(self._streams):
            stream.close()
