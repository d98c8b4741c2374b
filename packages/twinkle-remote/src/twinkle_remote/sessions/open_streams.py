"""The open streams of a session: they learn of new versions of weights, and end with the session."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from twinkle_remote.protocol.component import Component
    from twinkle_remote.sessions.telemetry.trace import Trace

_LOOPS = 16  # streams whose loops are on the session's timeline


class OpenStream(Protocol):
    """A stream, as its session knows it."""

    @property
    def version(self) -> int:
        """The version of the weights now."""

    def runs_on(self, component: Component) -> bool:
        """Whether a stage runs on a component."""

    def weights_elsewhere(self, component: Component) -> None:
        """A component on which no stage runs has new weights."""

    def works_ahead(self) -> bool:
        """Whether stages work while the loop does."""

    def held(self) -> AbstractContextManager[object]:
        """A block in which the stream begins nothing."""

    def weights_arrived(self, version: int | None, began: float) -> None:
        """The stages have new weights, of this version or the next one; the sync began at this wall clock time."""

    def close(self) -> None:
        """End the stream's threads."""


class OpenStreams:
    """The open streams of one session.

    Attributes:
        loops: Functions that add the loops of the latest streams to a timeline.
    """

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[OpenStream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._taken: weakref.WeakKeyDictionary[object, tuple[Component, int]] = weakref.WeakKeyDictionary()  # by sync
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
        """Whether a component works for a stream while the loop does."""
        return any(stream.works_ahead() and stream.runs_on(component) for stream in list(self._streams))

    def next_version(self, component: Component, sync: object, last: int) -> int:
        """The version that a sync gives a component next: the one after its last, and after the component's streams.

        Syncs into several components of one stream have one numbering so, also while several are under way. One that
        failed is given its number again.

        Args:
            component: The component that is given new weights.
            sync: The sync.
            last: The version that it gave last.
        """
        streams = [stream for stream in list(self._streams) if stream.runs_on(component)]
        if not streams:
            return last + 1
        with self._lock:
            newest = max(last, *(stream.version for stream in streams))
            _, own = self._taken.pop(sync, (component, 0))
            others = [
                number for other, number in self._taken.values() if any(stream.runs_on(other) for stream in streams)
            ]
            number = own if own > newest else max(newest, *others, 0) + 1
            self._taken[sync] = component, number
            return number

    @contextmanager
    def publishing(self, component: Component, version: int | None, began: float) -> Iterator[None]:
        """Hold the streams that run on a component during a block, and publish a version to them at its end.

        Args:
            component: The component that is given new weights.
            version: Its number; None for the next one of each stream.
            began: Wall clock when the sync began, in seconds.
        """
        streams = sorted(self._streams, key=id)
        published = [stream for stream in streams if stream.runs_on(component)]
        with ExitStack() as held:
            for stream in published:
                held.enter_context(stream.held())
            yield
            for stream in published:
                stream.weights_arrived(version, began)
        with self._lock:
            for sync, taken in list(self._taken.items()):
                if taken == (component, version):
                    del self._taken[sync]
        for stream in streams:
            if stream not in published:
                stream.weights_elsewhere(component)

    def close(self) -> None:
        """Close all streams."""
        for stream in list(self._streams):
            stream.close()
