"""Failures that no caller has seen: they are logged, and the first one is raised at the end of the session."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending_call import PendingCall

_logger = logging.getLogger("twinkle.remote")
_KEPT = 256


class UnseenFailures:
    """Failed calls whose failure no caller has seen yet.

    A call is kept as long as its lazy result exists. Of the calls without one, only the first are kept.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[int, PendingCall] = weakref.WeakValueDictionary()
        self._kept: dict[int, PendingCall] = {}

    def add(self, call: PendingCall) -> None:
        """Add a failed call; called again when its lazy result is deleted."""
        if call.held:
            self._held[id(call)] = call
            return
        self._held.pop(id(call), None)
        if len(self._kept) < _KEPT:
            self._kept[id(call)] = call
        if not (call.awaited or call.handed_on):
            self._log(call)

    def remove(self, call: PendingCall) -> None:
        """Remove a call whose failure was raised to a caller."""
        self._held.pop(id(call), None)
        self._kept.pop(id(call), None)

    def raise_first(self, others: Iterable[PendingCall] = ()) -> None:
        """Raise the first failure that no caller has seen, and log the others.

        Args:
            others: Pending calls; one may have failed on some ranks, or be past its deadline.

        Raises:
            TwinkleError: The error that the call itself raises.
        """
        unseen = self._all(others)
        self._log_all(unseen[1:])
        if unseen:
            unseen[0].raise_unseen(len(unseen) - 1)

    def log_all(self, others: Iterable[PendingCall] = ()) -> None:
        """Log every failure that no caller has seen.

        Args:
            others: As for `raise_first`.
        """
        self._log_all(self._all(others))

    def _all(self, others: Iterable[PendingCall]) -> Sequence[PendingCall]:
        calls = {id(call): call for call in [*list(self._held.values()), *list(self._kept.values()), *others]}
        return sorted((call for call in calls.values() if call.unseen()), key=lambda call: call.failed_at())

    def _log_all(self, calls: Iterable[PendingCall]) -> None:
        for call in calls:
            self._log(call)

    def _log(self, call: PendingCall) -> None:
        if not call.logged:
            call.logged = True
            _logger.error("a call failed, and no caller waited for it: %s", call.failure_text())
