"""New weights of components: streams that run on them know the version after each."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from twinkle_remote.protocol.call import component_of
from twinkle_remote.sessions.current import active
from twinkle_remote.sessions.telemetry.stats import SyncRecord

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def publishing(target: object, began: float | None = None, version: int | None = None) -> Iterator[None]:
    """A block in which a component is given new weights; the streams that run on it know the version after it.

    These streams begin nothing meanwhile, so that each of their calls is before the version or after it.

    Args:
        target: A component; of other values no stream knows.
        began: Wall clock when the sync began, in seconds; None for now.
        version: The number of `next_version`; None for the next one of each stream.
    """
    component = component_of(target)
    runtime = active()
    if runtime is None or component is None:
        yield
        return
    since = time.time() if began is None else began
    with runtime.streams.publishing(component, version):
        yield
        runtime.stats.synced(SyncRecord(component.name, component.group, since, time.time()))


def next_version(target: object, sync: object, last: int) -> int:
    """The version that a sync gives a target next: the one after `last`, and after those of the streams that run on it.

    Args:
        target: A component; no stream runs on anything else.
        sync: The sync; it is given the same number until the number is published.
        last: The version that it gave last.
    """
    component = component_of(target)
    runtime = active()
    return last + 1 if runtime is None or component is None else runtime.streams.next_version(component, sync, last)


def takes_in_flight(target: object) -> bool:
    """Whether a component works for an open stream, so that it takes new weights between two calls."""
    component = component_of(target)
    runtime = None if component is None else active()
    return runtime is not None and component is not None and runtime.streams.work_on(component)
