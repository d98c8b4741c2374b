"""Failures that no caller has seen: they are logged, and the first one is raised at the end of the session."""

from __future__ import annotations

import logging
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.ends import SIGNALS, no_end
from twinkle_remote.failures.raising import raise_failures

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.protocol.own_calls import UnseenFailure
    from twinkle_remote.sessions.in_flight.call_in_flight import CallInFlight

_logger = logging.getLogger("twinkle.remote")
_KEPT = 256


class UnseenFailures:
    """Failed calls whose failure no caller has seen yet.

    A call is kept as long as its lazy result exists. Of the calls without one, only the first are kept. Calls that
    failed because an argument did are kept apart: once that failure is seen, they would hold places for nothing.
    """

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[int, CallInFlight] = weakref.WeakValueDictionary()
        self._kept: dict[int, CallInFlight] = {}
        self._followers: dict[int, CallInFlight] = {}

    def add(self, call: CallInFlight) -> None:
        """Add a failed call; called again when its lazy result is deleted."""
        if call.held:
            self._held[id(call)] = call
            return
        self._held.pop(id(call), None)
        follows = call.comes_from_a_source()
        kept = self._followers if follows else self._kept
        if len(kept) < _KEPT:
            kept[id(call)] = call
        if not (call.awaited or call.handed_on or follows):
            self._log(call)

    def remove(self, call: CallInFlight) -> None:
        """Remove a call whose failure was raised to a caller."""
        self._held.pop(id(call), None)
        self._kept.pop(id(call), None)
        self._followers.pop(id(call), None)

    def take_first(self, others: Iterable[CallInFlight] = ()) -> tuple[UnseenFailure | None, int]:
        """The first failure that no caller has seen, and the number of the others, which are logged.

        All of them count as seen from now on.

        Args:
            others: Pending calls; one may have failed on some ranks, or be past its deadline.
        """
        unseen = self._all(others)
        self._log_all(unseen[1:])
        first = unseen[0].unseen_failure() if unseen else None
        for call in unseen:
            call.seen = True
        self._held.clear()
        self._kept.clear()
        self._followers.clear()
        return first, max(0, len(unseen) - 1)

    def log_all(self, others: Iterable[CallInFlight] = ()) -> None:
        """Log every failure that no caller has seen.

        Args:
            others: As for `take_first`.
        """
        self._log_all(self._all(others))

    def _all(self, others: Iterable[CallInFlight]) -> Sequence[CallInFlight]:
        known = [*list(self._held.values()), *list(self._kept.values()), *list(self._followers.values())]
        calls = {id(call): call for call in [*known, *others]}
        return sorted((call for call in calls.values() if call.unseen()), key=lambda call: call.failed_at())

    def _log_all(self, calls: Iterable[CallInFlight]) -> None:
        for call in calls:
            self._log(call)

    def _log(self, call: CallInFlight) -> None:
        if not call.logged:
            call.logged = True
            _logger.error("a call failed, and no caller waited for it: %s", call.failure_text())


def raise_unseen(unseen: UnseenFailure, others: int) -> NoReturn:
    """Raise a failure that no caller has seen.

    Args:
        unseen: The failure.
        others: Number of others, which are logged.

    Raises:
        TwinkleError: The error that the call itself raises.
    """
    try:
        if unseen.late is not None:
            raise unseen.late
        raise_failures(unseen.name, unseen.group, unseen.failures, unseen.line)
    except TwinkleError as error:
        more = f"; {others} more like it {'is' if others == 1 else 'are'} logged" if others else ""
        note = f"  no caller had waited for this call when the session ended{more}"
        if isinstance(error, SIGNALS):  # a session may be a generator's block
            ended = no_end(error)
            ended.add_note(note)
            raise ended from error.__cause__
        with suppress(Exception):  # the type may refuse it
            error.add_note(note)
        raise
