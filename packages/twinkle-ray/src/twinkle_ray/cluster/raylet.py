"""Checks that the raylet of this node is alive: without it, Ray silently ends a process that uses the object store."""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path

import ray

from twinkle_remote.errors import WorkerDiedError


class Raylet:
    """Ray's own process on this node, which holds the object store.

    Args:
        pid: Its process id.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = select.poll()
        self._descriptor = os.pidfd_open(pid)
        self._ended.register(self._descriptor, select.POLLIN)

    def check(self) -> None:
        """Check that the object store can be used.

        Raises:
            WorkerDiedError: The raylet has ended.
        """
        if self._ended.poll(0):
            raise WorkerDiedError(
                f"the raylet of this node (Ray's own process, {self._pid}) has ended, killed or out of memory, "
                "and with it the object store and every worker: end the session, and start another one"
            )

    def problem(self) -> str | None:
        """Why it does not answer: it has ended, or is stopped; None if it runs."""
        name = f"the raylet of this node (Ray's own process, {self._pid})"
        if self._ended.poll(0):
            return f"{name} has ended"
        with suppress(OSError, IndexError):  # it ended meanwhile
            if Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return f"{name} is stopped (SIGSTOP); SIGCONT lets it go on"
        return None

    def close(self) -> None:
        """Stop watching it."""
        os.close(self._descriptor)


_watched: Raylet | None = None


def watch_raylet() -> None:
    """Watch the raylet of this node from now on, where the system allows it."""
    global _watched
    forget_raylet()
    pid = _raylet_here()
    if pid is not None:
        with suppress(AttributeError, OSError):  # no pidfd on this system, or it ended meanwhile
            _watched = Raylet(pid)


def forget_raylet() -> None:
    """Stop watching it."""
    global _watched
    watched, _watched = _watched, None
    if watched is not None:
        watched.close()


def raylet_problem() -> str | None:
    """Why the raylet of this node does not answer; None if it runs, or is not watched."""
    return None if _watched is None else _watched.problem()


def check_raylet() -> None:
    """Check that the object store can be used, if its process is watched.

    Raises:
        WorkerDiedError: The raylet has ended.
    """
    if _watched is not None:
        _watched.check()


def raylet_variable(name: str) -> str | None:
    """A variable of the environment of this node's raylet, which its workers inherit; None if it cannot be read."""
    pid = _raylet_here()
    with suppress(OSError):  # another user's
        for entry in [] if pid is None else Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(os.fsencode(name) + b"="):
                return os.fsdecode(entry.partition(b"=")[2])
    return None


def _raylet_here() -> int | None:
    here = ray.get_runtime_context().get_node_id()
    sockets = [str(node["RayletSocketName"]) for node in ray.nodes() if node["NodeID"] == here]  # type: ignore[no-untyped-call]  # Ray's own gap
    return next((pid for name in sockets if (pid := _listening(name)) is not None), None)


def _listening(name: str) -> int | None:
    """The id of the raylet that listens on a socket; None if there is none on this host."""
    wanted = f"--raylet_socket_name={name}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile, or this user cannot see it
            if wanted in (entry / "cmdline").read_bytes().split(b"\0"):
                return int(entry.name)
    return None
