"""What a process does beside the calls that it is at: transfers that go on, and groups that are built."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.rendezvous.heartbeat import Heartbeat
    from twinkle_ray.weights.transport import Link


class Background(Thread):
    """A run_rounds that goes on while the component does other things."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="twinkle-weights-run_rounds", daemon=True)
        self._work = work
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Do the work; an error is kept for `ProcessState.wait_transfer`."""
        try:
            self._work()
        except Exception as error:
            self.error = error


def build_interruptibly(build: Callable[[], Link], watch: Heartbeat) -> Link:
    """Build a link on a thread of its own: a peer that dies meanwhile would hold this one up to Gloo's own limit.

    Raises:
        PeerFailedError: If the session was aborted meanwhile.
    """
    built: list[Link] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            built.append(build())
        except Exception as error:
            errors.append(error)

    thread = Thread(target=run, name="twinkle-weights-join", daemon=True)
    thread.start()
    while thread.is_alive() and watch.reason is None:
        thread.join(0.05)
    if errors:
        raise errors[0]
    if not built:
        raise PeerFailedError(watch.reason or "the group was given up")
    return built[0]
