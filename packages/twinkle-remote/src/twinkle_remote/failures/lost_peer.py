"""Failures that say no more than that another process is gone: the first failure of a call is likely that one's."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twinkle_remote.protocol.failure import Failure

# what Gloo and NCCL say on the ranks that wait for one that has ended
_TYPES = ("RuntimeError", "DistBackendError", "DistNetworkError", "CollectiveError", "CollectiveTimeoutError")
_TEXTS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "remote process exited or there was a network error",
    "no answer from rank(s)",
)


def lost_a_peer(failure: Failure) -> bool:
    """Whether a failure is a process group's connection to a process that has ended."""
    named = failure.type_name.rpartition(".")[2] in _TYPES
    return named and not failure.died and any(text in failure.message for text in _TEXTS)


def only_lost_peers(failures: Iterable[Failure]) -> bool:
    """Whether the failure behind all of these has not been told yet."""
    return all(lost_a_peer(failure) for failure in failures)
