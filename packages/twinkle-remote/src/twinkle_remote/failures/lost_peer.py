"""Detects failures that only report a lost peer process: their likely cause is that process's own failure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_remote.protocol.failure import Failure

# errors of Gloo and NCCL on ranks that wait for an ended rank
_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "CollectiveError", "CollectiveTimeoutError")
_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "no answer from rank(s)",
)


def lost_a_peer(failure: Failure) -> bool:
    """Whether a failure reports a process group's lost connection to an ended process."""
    named = failure.type_name.rpartition(".")[2] in _TYPES
    return named and not failure.died and any(text in failure.message for text in _TEXTS)


def only_lost_peers(failures: Iterable[Failure]) -> bool:
    """Whether all failures only report lost peers, so that the cause has not arrived yet."""
    return all(lost_a_peer(failure) for failure in failures)
