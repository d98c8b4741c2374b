"""Failures that no caller was given: logged soon, and raised at the end of the session."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending_call import PendingCall

_log = logging.getLogger("twinkle.remote")
_KEPT = 256


class UnseenFailures:
    """Failed calls whose failure no caller was given yet.

    A call whose lazy result exists is kept as long as that; of the others the first are kept.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[int, PendingCall] = weakref.WeakValueDictionary()
        self._kept: dict[int, PendingCall] = {}

    def add(self, call: PendingCall) -> None:
        """Add a call that failed, or a failed one whose lazy result was deleted."""
        if call.held:
            self._held[id(call)] = call
            return
        self._held.pop(id(call), None)
        if len(self._kept) < _KEPT:
            self._kept[id(call)] = call
        if not (call.awaited or call.handed_on):
            self._tell(call)

    def remove(self, call: PendingCall) -> None:
        """Remove a call whose failure a caller was given."""
        self._held.pop(id(call), None)
        self._kept.pop(id(call), None)

    def raise_first(self, others: Iterable[PendingCall] = ()) -> None:
        """Raise the first failure that no caller was given; the rest is logged.

        Args:
            others: Calls that are still pending: one may have failed on some ranks, or be past its deadline.

        Raises:
            TwinkleError: As the call would have raised it.
        """
        unseen = self._all(others)
        self._tell_all(unseen[1:])
        if unseen:
            unseen[0].raise_unseen(len(unseen) - 1)

    def tell_all(self, others: Iterable[PendingCall] = ()) -> None:
        """Log every failure that no caller was given.

        Args:
            others: As for `raise_first`.
        """
        self._tell_all(self._all(others))

    def _all(self, others: Iterable[PendingCall]) -> Sequence[PendingCall]:
        calls = {id(call): call for call in [*list(self._held.values()), *list(self._kept.values()), *others]}
        return sorted((call for call in calls.values() if call.unseen()), key=lambda call: call.failed_at())

    def _tell_all(self, calls: Iterable[PendingCall]) -> None:
        for call in calls:
            self._tell(call)

    def _tell(self, call: PendingCall) -> None:
        if not call.logged:
            call.logged = True
            _log.error("a call failed and nobody waited for it: %s", call.failure_text())
