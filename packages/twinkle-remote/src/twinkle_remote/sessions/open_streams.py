"""The open streams of a session: they learn of new versions of weights, and end with the session."""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.trace import Trace

_LOOPS = 16  # streams whose loops are on the session's timeline


class OpenStream(Protocol):
    """What a session knows of a stream."""

    def runs_on(self, component: Component) -> bool:
        """Whether a stage runs on a component."""

    def weights_elsewhere(self, component: Component) -> None:
        """A component on which no stage runs has new weights."""

    def works_ahead(self) -> bool:
        """Whether stages work beside the loop."""

    def held(self) -> AbstractContextManager[object]:
        """A block in which the stream begins nothing."""

    def weights_arrived(self, began: float) -> None:
        """The stages have new weights; the sync began at this time of the wall clock."""

    def close(self) -> None:
        """End the stream's threads."""


class OpenStreams:
    """The open streams of one session.

    Attributes:
        loops: Functions that add the loops of the latest streams to a timeline.
    """

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[OpenStream] = weakref.WeakSet()
        self.loops: deque[Callable[[Trace], None]] = deque(maxlen=_LOOPS)

    def add(self, stream: OpenStream, loop: Callable[[Trace], None]) -> None:
        """A stream begins to work.

        Args:
            stream: The stream.
            loop: Adds its loop to a timeline.
        """
        self._streams.add(stream)
        self.loops.append(loop)

    def remove(self, stream: OpenStream) -> None:
        """A stream is closed."""
        self._streams.discard(stream)

    def work_on(self, component: Component) -> bool:
        """Whether a component works for a stream beside the loop."""
        return any(stream.works_ahead() and stream.runs_on(component) for stream in list(self._streams))

    @contextmanager
    def publishing(self, component: Component, began: float) -> Iterator[None]:
        """Hold the streams that run on a component during a block, and publish a version to them at its end.

        Args:
            component: The component that is given new weights.
            began: Wall clock when the sync began, in seconds.
        """
        streams = sorted(self._streams, key=id)
        told = [stream for stream in streams if stream.runs_on(component)]
        with ExitStack() as held:
            for stream in told:
                held.enter_context(stream.held())
            yield
            for stream in told:
                stream.weights_arrived(began)
        for stream in streams:
            if stream not in told:
                stream.weights_elsewhere(component)

    def close(self) -> None:
        """Close all streams."""
        for stream in list(self._streams):
            stream.close()
