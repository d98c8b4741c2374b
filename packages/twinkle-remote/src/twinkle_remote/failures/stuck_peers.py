"""Peers of a rank that failed between two collectives: they wait for it, and its end frees them."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING

from twinkle_remote.failures.report import raised_itself

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Outcome

_SECONDS_BETWEEN_LOOKS = 0.5
_MOST_SECONDS = 600.0
_INNERMOST = 3  # frames of a stack that say what it waits for
_IN_COLLECTIVE = re.compile(r"/torch/distributed/.*\.py\"?, line")
_LOGGER = logging.getLogger("twinkle")


def free_stuck_peers(call: PendingCall, failed: Outcome) -> None:
    """Have a thread look after the peers of a rank that failed in a call of all ranks; returns at once.

    A rank that raised enters no further collective of that call. Peers that wait in one are seen by their stacks, twice
    the same. The process of each failed rank is ended then: the connections of its process groups close, each peer gets
    an error, and nobody waits until a deadline.
    """
    if raised_itself(failed):
        threading.Thread(target=_look, args=(call, failed.rank), name="twinkle-stuck-peers", daemon=True).start()


def _look(call: PendingCall, failed: int) -> None:
    runtime, group = call.runtime, call.group
    until = time.monotonic() + _MOST_SECONDS
    before: Mapping[int, str] = {}
    while time.monotonic() < until:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
        if call.done() or runtime.closed:
            return
        waiting = call.pending()
        stacks = dict(group.stacks(waiting))
        stuck = [rank for rank, stack in stacks.items() if before.get(rank) == stack and is_in_collective(stack)]
        before = stacks
        if stuck:
            why = f"it was ended because it had failed in {call.name} while ranks {stuck} waited for it in a collective"
            if group.end_rank(failed, why):
                _LOGGER.warning(
                    "%s failed on rank %s of group %r while ranks %s waited for it in a collective: the process of the "
                    'rank that failed is ended, which frees the others; restart="group" starts it again',
                    *(call.name, failed, group.name, stuck),
                )
            return


def is_in_collective(stack: str) -> bool:
    """Whether a stack, the innermost frame last, ends within torch's collectives."""
    frames = [row for row in stack.splitlines() if row.lstrip().startswith("File ")]
    return any(map(_IN_COLLECTIVE.search, frames[-_INNERMOST:]))
