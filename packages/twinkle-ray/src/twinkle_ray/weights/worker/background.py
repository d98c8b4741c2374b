"""Threads of a process apart from the controller's calls: a detached transfer, and the building of a link."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import PeerFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_ray.weights.rendezvous.heartbeat import Heartbeat
    from twinkle_ray.weights.transport import Link


class Background(Thread):
    """Runs the rounds of a detached transfer while the component goes on."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="twinkle-weights-rounds", daemon=True)
        self._work = work
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        """Do the work; `ProcessState.wait_transfer` raises its error."""
        try:
            self._work()
        except Exception as error:
            self.error = error


def build_interruptibly(build: Callable[[], Link], heartbeat: Heartbeat) -> Link:
    """Build a link on its own thread: without it a peer's death would block this process until Gloo's own timeout.

    Raises:
        PeerFailedError: If the session is aborted meanwhile.
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
    while thread.is_alive() and heartbeat.reason is None:
        thread.join(0.05)
    if errors:
        raise errors[0]
    if not built:
        raise PeerFailedError(heartbeat.reason or "the group was not built")
    return built[0]
