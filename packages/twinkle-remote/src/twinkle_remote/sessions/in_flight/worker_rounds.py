"""Waits at the end of a session for the calls that workers made themselves, and for the calls that those make."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, cast

from twinkle_remote.errors import TwinkleError
from twinkle_remote.protocol.backend import InputReplies
from twinkle_remote.protocol.messages import Task
from twinkle_remote.protocol.own_calls import OwnCalls, UnseenFailure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from twinkle_remote.protocol.backend import Backend, Reply
    from twinkle_remote.protocol.failure import Failure
    from twinkle_remote.protocol.messages import Outcome

_log = logging.getLogger("twinkle.remote")
_ON_WORKER_SECONDS = 0.2  # that a worker waits for its own calls before it answers; it runs no task meanwhile
_SLICE_SECONDS = 1.0  # of one wait
_PATIENCE_SECONDS = 2.0  # without any answer, until a worker that may be busy for ever is given up
_REPORT_AFTER_SECONDS = 5.0
_REPORT_EVERY_SECONDS = 60.0
_SHOWN = 8
_QUESTION = "the question for its own calls"


class _Rank(NamedTuple):
    group: str
    rank: int


class WorkerRounds:
    """Asks every worker for its own calls, round after round; a worker answers when it runs no task.

    Nothing runs any more when no worker has a call in flight in a round, and none has started one since the round
    before: then no task ran at the end of the earlier round. The driver's own calls must be done before.

    Args:
        backend: Its attached groups are asked.
        given_up: Group and rank of the workers that may be busy with calls of the driver that are not waited for.

    Attributes:
        unseen: Failures of the workers' calls that no caller has seen.
        others: Number of further ones; the workers have logged them.
    """

    def __init__(self, backend: Backend, given_up: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self._backend = backend
        self._groups = {group.name: group for group in backend.attached()}
        self._given_up = given_up
        everyone = [_Rank(group.name, rank) for group in self._groups.values() for rank in range(group.size)]
        self._latest = dict.fromkeys(everyone, OwnCalls())  # of the workers that are there
        self._asked: dict[Reply, _Rank] = {}
        self._has_lost = False
        self._unknown: set[_Rank] = set()  # whose answer was lost, and who are asked again
        self._deaths: list[tuple[_Rank, Failure]] = []  # of workers whose own calls are not known
        self._reported = time.monotonic() + _REPORT_AFTER_SECONDS
        self.unseen: list[UnseenFailure] = []
        self.others = 0

    def wait(self, seconds: float | None) -> str:
        """Wait until nothing runs; return what was still waited for when the time was over, as text, or "".

        Args:
            seconds: At or above 0; None for as long as it takes.
        """
        until = None if seconds is None else time.monotonic() + seconds
        while self._latest:
            started = {rank: calls.started for rank, calls in self._latest.items()}
            if not self._round(until):
                return self._waited_for()
            if self._is_quiet(started) and (not self._asked or self._may_give_up()):
                self._give_up(set(self._asked.values()))
                return ""
            if until is not None and time.monotonic() >= until:
                return self._waited_for()
        return ""

    def _round(self, until: float | None) -> bool:
        """Ask all who have answered, and take their answers; False when the time is over."""
        if self._unknown:
            time.sleep(_ON_WORKER_SECONDS)  # the connection is being made again
            self._unknown.clear()
        for rank in self._latest.keys() - self._asked.values():
            task = Task("report", "", _QUESTION, _ON_WORKER_SECONDS)
            self._asked[self._groups[rank.group].submit(rank.rank, task, InputReplies())] = rank
        heard = time.monotonic()
        while self._asked:
            left = _SLICE_SECONDS if until is None else min(_SLICE_SECONDS, until - time.monotonic())
            done = self._backend.wait(list(self._asked), max(0.0, left))
            for reply in done:
                self._take(self._asked.pop(reply), self._backend.outcome(reply))
            now = time.monotonic()
            if done:
                heard = now
            elif until is not None and now >= until:
                return False
            elif now - heard >= _PATIENCE_SECONDS and (self._may_give_up() or any(self._in_flight())):
                break
            self._report(now)
        return True

    def _is_quiet(self, started: Mapping[_Rank, int]) -> bool:
        """Whether those who have answered have no call in flight, and started none since the round before."""
        heard = self._latest.keys() - self._asked.values()
        return not self._unknown and not any(
            self._latest[rank].in_flight or self._latest[rank].started != started[rank] for rank in heard
        )

    def _take(self, rank: _Rank, outcome: Outcome) -> None:
        """Take a worker's answer, or its loss."""
        if outcome.failure is not None:
            self._take_failure(rank, outcome.failure)
            return
        try:
            calls = cast("OwnCalls", self._backend.store.get(outcome.payload)[0])
        except TwinkleError as error:
            _log.warning("%s: its own calls are not known: %s", self._label(rank), error)
            del self._latest[rank]
            return
        self._latest[rank] = calls
        if calls.unseen is not None:
            self.unseen.append(calls.unseen)
            self.others += calls.others

    def _take_failure(self, rank: _Rank, failure: Failure) -> None:
        if failure.unanswered:
            self._unknown.add(rank)
            return
        lost = self._latest.pop(rank).in_flight
        self._has_lost = self._has_lost or failure.died
        if failure.died and lost:
            name = f"{', '.join(sorted(set(lost)))}, which it had called itself"
            self._add_death(rank, failure, name)
            return
        if failure.died:
            self._deaths.append((rank, failure))
        what = "died" if failure.died else f"did not answer ({failure.type_name}: {failure.message})"
        level = logging.INFO if failure.repeated else logging.WARNING
        _log.log(level, "%s %s: it is not known whether it had its own calls in flight", self._label(rank), what)

    def _add_death(self, rank: _Rank, failure: Failure, name: str) -> None:
        failure = replace(failure, method=name)
        self.unseen.append(UnseenFailure(name, rank.group, "", time.time(), (failure,)))

    def _all_given_up(self) -> set[tuple[str, int]]:
        """The workers that may be busy with a call that is not waited for."""
        return set(self._given_up()).union(*(calls.given_up for calls in self._latest.values()))

    def _may_give_up(self) -> bool:
        """Whether all who have not answered may be busy with what is not waited for, or with calls of a lost worker."""
        return self._has_lost or not self._all_given_up().isdisjoint(self._asked.values())

    def _in_flight(self) -> Sequence[str]:
        return [name for calls in self._latest.values() for name in calls.in_flight]

    def _give_up(self, busy: Collection[_Rank]) -> None:
        others = set(busy) - self._all_given_up()
        if others:
            what = "may run what a call that failed or is past its deadline, or a lost worker, has called; that is lost"
            _log.warning("shutdown: %s %s", self._listing(others), what)
            for rank, failure in self._deaths:
                self._add_death(rank, failure, "calls that it had made itself")

    def _report(self, now: float) -> None:
        if now >= self._reported:
            self._reported = now + _REPORT_EVERY_SECONDS
            _log.warning("the session ends when %s; Ctrl-C gives up", self._waited_for())

    def _waited_for(self) -> str:
        names = self._in_flight()
        parts = []
        if names:
            count = f"{len(names)} calls" if len(names) > 1 else "1 call"
            verb = "are" if len(names) > 1 else "is"
            parts.append(f"{count} of workers ({', '.join(sorted(set(names)))}) {verb} done")
        busy = {*self._asked.values(), *self._unknown}
        if busy:
            parts.append(f"{self._listing(busy)} {'have' if len(busy) > 1 else 'has'} no task left")
        return " and ".join(parts)

    def _listing(self, ranks: Collection[_Rank]) -> str:
        shown: Sequence[str] = [self._label(rank) for rank in sorted(ranks)]
        more = f" and {len(shown) - _SHOWN} others" if len(shown) > _SHOWN else ""
        return ", ".join(shown[:_SHOWN]) + more

    def _label(self, rank: _Rank) -> str:
        return self._groups[rank.group].info(rank.rank).label()
