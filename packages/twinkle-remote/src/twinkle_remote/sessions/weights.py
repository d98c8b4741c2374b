"""The weights of a session's components: what gives them, their versions, and the open streams that learn of each."""

from __future__ import annotations

import threading
import weakref
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_remote.protocol.messages import Component
    from twinkle_remote.streams.stream import Stream


class WorkersOf(NamedTuple):
    """Some ranks of a component.

    Attributes:
        component: The component.
        ranks: At least one.
    """

    component: Component
    ranks: Sequence[int]


class WeightSource(Protocol):
    """Gives a component its weights, in versions."""

    @property
    def given(self) -> int:
        """The version that it gave last, by itself; 0 before the first, and after it was given another state."""

    def leave_out(self, workers: WorkersOf) -> None:
        """Give these ranks nothing until they have caught up, or are taken back."""

    def take_back(self, workers: WorkersOf) -> None:
        """Give these ranks the next version as all others."""

    def catch_up(self, workers: WorkersOf) -> None:
        """Give ranks that are left out the version that the others have, or a newer one.

        Args:
            workers: Those of one or more replicas.

        Raises:
            TwinkleError: It failed; the ranks are still left out.
        """


class WeightSources:
    """The weight sources of a session, by component."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], weakref.WeakSet[WeightSource]] = {}

    def add(self, component: Component, source: WeightSource) -> None:
        """A source gives a component its weights from now on, as long as the source exists."""
        self._sources.setdefault(component.key, weakref.WeakSet()).add(source)

    def of(self, component: Component) -> Sequence[WeightSource]:
        """The sources of a component."""
        return tuple(self._sources.get(component.key, ()))


class OpenStreams:
    """The open streams of one session."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._taken: weakref.WeakKeyDictionary[object, tuple[Component, int]] = weakref.WeakKeyDictionary()  # by sync

    def add(self, stream: Stream) -> None:
        """A stream begins to work."""
        self._streams.add(stream)

    def remove(self, stream: Stream) -> None:
        """A stream is closed."""
        self._streams.discard(stream)

    def work_on(self, component: Component) -> bool:
        """Whether a component works for a stream while the loop does."""
        return any(stream.works_ahead() and stream.runs_on(component) for stream in list(self._streams))

    def max_lag(self, component: Component) -> int:
        """The largest `max_lag` of the streams that run on a component; 0 without one."""
        return max([stream.max_lag or 0 for stream in list(self._streams) if stream.runs_on(component)], default=0)

    def next_version(self, component: Component, sync: object, last: int) -> int:
        """The version that a sync gives a component next: the one after its last, and after the component's streams.

        Syncs into several components of one stream have one numbering so, also while several are under way. One that
        failed is given its number again.
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
    def publishing(self, component: Component, version: int | None) -> Iterator[None]:
        """Hold the streams that run on a component during a block, and publish a version to them at its end."""
        published = [stream for stream in sorted(self._streams, key=id) if stream.runs_on(component)]
        with ExitStack() as held:
            for stream in published:
                held.enter_context(stream.held())
            yield
            for stream in published:
                stream.weights_arrived(version)
        with self._lock:
            for sync, taken in list(self._taken.items()):
                if taken == (component, version):
                    del self._taken[sync]

    def close(self) -> None:
        """Close all streams."""
        for stream in list(self._streams):
            stream.close()
