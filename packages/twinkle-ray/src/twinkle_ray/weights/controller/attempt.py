"""One attempt to sync: transfer, fetch, commit, verify and finalize, on the ranks of both sides."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from twinkle_ray.weights.checks import check_arrival, check_finite, check_one_rank, check_replicas
from twinkle_ray.weights.controller.rank_calls import SIDES, RankCalls
from twinkle_ray.weights.controller.steps import LastStep, run_step
from twinkle_ray.weights.controller.survivors import death_behind, run_where_alive
from twinkle_ray.weights.delivery import WeightDelivery, by_name, changed_names
from twinkle_ray.weights.errors import WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.worker import endpoint, in_flight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from twinkle_ray.weights.controller.steps import StepCall
    from twinkle_ray.weights.controller.sync_group import SyncGroup
    from twinkle_ray.weights.messages import Side, StepResult, SyncCommand
    from twinkle_ray.weights.planning.box_plan import Digests
    from twinkle_ray.weights.planning.sync_plan import SyncPlan
    from twinkle_ray.weights.worker.examination import Examined


_log = logging.getLogger("twinkle.ray")
# routes whose blocks stay where they are when their source has made the sync final
_STAYING = frozenset({"link", "shared"})


class Attempt:
    """One attempt, from its first bucket to weights that are final.

    Args:
        calls: To the ranks.
        group: The process group of the sync.
        sync_plan: The plan that the ranks follow.
        command: The command that the ranks get.
        deadline: On the monotonic clock.
        fetched: The buckets' handles that each rank of the target has got in an earlier attempt by this plan.
        sources: The results of `transfer` on the source, where that was done.
    """

    def __init__(
        self,
        calls: RankCalls,
        group: SyncGroup,
        sync_plan: SyncPlan,
        command: SyncCommand,
        deadline: float,
        fetched: Sequence[Mapping[int, object]] = (),
        sources: Sequence[StepResult] = (),
    ) -> None:
        self.sync_plan, self.command = sync_plan, command
        self._calls, self._group, self._deadline = calls, group, deadline
        self.fetched = fetched
        self._sources = sources
        self._sent: Sequence[Digests] | None = None
        self._finalizing: LastStep | None = None
        self._lost = False

    @property
    def compares(self) -> bool:
        """Whether the values at both ends are compared."""
        return self._sent is not None

    def transfer(self, *, compare: bool, finite: bool) -> None:
        """Send the buckets, or pack them where the command is detached.

        Args:
            compare: Compare the source's replicas first, and both ends after the commit.
            finite: Refuse values that are not finite where values are compared; else the log names them.
        """
        if compare:
            examined: list[Examined] = self._step("digest", ("source",), endpoint.examine)["source"]
            self._sent = [one.digests for one in examined]
            name = self._calls.both_sides["source"].name
            check_one_rank(name, [one.apart for one in examined])
            check_replicas(self.sync_plan.plan, self._sent, name)
            check_finite(name, [one.not_finite for one in examined], refuse=finite)
        self._sources = self._step("transfer", SIDES, endpoint.transfer)["source"]

    def commit(self) -> WeightDelivery:
        """Wait until everything has arrived, and write it on every rank of the target, or on none.

        Without old values to go back to, what has arrived on all ranks is final: a death in the write is no failure.
        """
        self._fetch()
        if not self.command.reversible:
            return self._commit_finally()
        try:
            bits = self._step("commit", ("target",), endpoint.commit)["target"]
            received = self._verify()
        except WeightSyncError:
            if self.command.reversible:
                call = self._calls.call("target", endpoint.rollback, self._calls.same("target", self.command))
                run_where_alive("rollback", self._calls.both_sides["target"], call)
            raise
        return self._delivery(bits, received)

    def _commit_finally(self) -> WeightDelivery:
        """Write what has arrived on every rank of the target; none of them can go back."""
        if self._sent is not None:
            arrived = self._step("digest_arrivals", ("target",), endpoint.digest_arrivals)["target"]
            check_arrival(self.sync_plan.plan, self._sent, arrived)
        target = self._calls.both_sides["target"]
        calls: dict[Side, StepCall] = {
            "target": self._calls.call("target", endpoint.commit, self._calls.same("target", self.command))
        }
        together = self._sent is None and target.polled and set(self.sync_plan.routes) <= _STAYING
        commit = LastStep("commit", self._calls.both_sides, calls)
        if together:
            self._finalizing = self._finalize()  # a worker runs its calls in order
        version = self.command.version
        placed = f"version {version} of the weights has arrived on all ranks, so that the others hold it"
        watched = self._group.watched(self.sync_plan, self.command.phase("commit"), ("target",))
        try:
            done = commit.finish(self._deadline, watched, placed)
        except WeightSyncError as error:
            if self._finalizing is not None:
                self._finalizing.let_go()
            if isinstance(error, WeightSyncTimeoutError):
                raise
            _log.warning("%s; it writes them once more", error)
            commit = LastStep("commit", self._calls.both_sides, calls)
            if together:  # the `on_weights` of other ranks may wait for that of this one
                self._finalizing = self._finalize()
            done = commit.finish(self._deadline, watched, placed)
        self._lost = done is None
        every_bit = (1 << len(self.sync_plan.plan.entries)) - 1
        bits = [every_bit] if done is None else done["target"]
        return self._delivery(bits, None if self._lost else self._verify())

    def hold(self, superseded: Sequence[Sequence[int]]) -> WeightDelivery:
        """Wait until everything has arrived, and every rank of the target holds it; writes nothing.

        Args:
            superseded: For each rank of the target, the attempts that it need not write.
        """
        self._fetch()
        compare = self._calls.same("target", self.compares)
        try:
            reports = self._step("hold", ("target",), in_flight.hold, superseded, compare)["target"]
            received = [report.digests for report in reports]
            if self._sent is not None:
                check_arrival(self.sync_plan.plan, self._sent, received)
        except WeightSyncError:
            self.let_go()
            raise
        return self._delivery([report.changed for report in reports], received if self.compares else None)

    def let_go(self) -> None:
        """Have every rank of the target forget what it holds."""
        call = self._calls.call("target", in_flight.let_go, self._calls.same("target", self.command))
        run_where_alive("let_go", self._calls.both_sides["target"], call)

    def _delivery(self, bits: Sequence[int], received: Sequence[Digests] | None) -> WeightDelivery:
        changed = 0
        for of_rank in bits:
            changed |= of_rank
        plan = self.sync_plan.plan
        return WeightDelivery(
            self.command.version,
            changed_names(plan, changed),
            {} if self._sent is None else by_name(plan, self._sent),
            {} if received is None else by_name(plan, received),
            sum(transfer.nbytes for transfer in plan.transfers),
        )

    def finalize_source(self) -> None:
        """Have the source's ranks drop what they keep for this attempt."""
        call = self._calls.call("source", endpoint.finalize, self._calls.same("source", self.command))
        run_where_alive("finalize", self._calls.both_sides["source"], call)

    def finalize(self) -> bool:
        """Make the commit final on every rank, and call the target's `on_weights`.

        Returns:
            Whether every rank has answered; the log names those that have died.
        """
        step = self._finalizing or self._finalize()
        watched = self._group.watched(self.sync_plan, self.command.phase("finalize"), ("target",))
        placed = f"version {self.command.version} of the weights is in place"
        return step.finish(self._deadline, watched, placed, known=self._lost) is not None

    def _finalize(self) -> LastStep:
        calls = {
            side: self._calls.call(side, endpoint.finalize, self._calls.same(side, self.command)) for side in SIDES
        }
        return LastStep("finalize", self._calls.both_sides, calls)

    def _fetch(self) -> None:
        """Wait for the background of a detached sync, and get the buckets that sources put into block stores.

        Where they are where the target got them last, each rank has them.
        """
        if self.command.detached:
            self._sources = self._step("wait_transfer", SIDES, endpoint.wait_transfer)["source"]
        if not (self.sync_plan.uses_block_stores or self.command.checksum):
            return
        handles = {index: handle for result in self._sources for index, handle in result.handles.items()}
        wanted = [
            {
                bucket.index: handles[bucket.index]
                for bucket in self.sync_plan.buckets_of.get(("target", rank), ())
                if bucket.index in handles
            }
            for rank in range(self._calls.both_sides["target"].size)
        ]
        if wanted == self.fetched and not self.command.checksum:
            return
        self.fetched = ()
        try:
            fetched = self._step("fetch", ("target",), endpoint.fetch, wanted)["target"]
        except WeightSyncError as error:
            answer = self._calls.call("source", endpoint.ping)
            raise death_behind("fetch", error, self._calls.both_sides["source"], answer) from error
        self.fetched = wanted
        if self.command.checksum:
            _compare_checksums(self._sources, fetched)

    def _verify(self) -> Sequence[Digests] | None:
        """Digests of the target's tensors, compared with the source's; None where the source has made none."""
        if self._sent is None:
            return None
        received = self._step("verify", ("target",), endpoint.digest, self._calls.same("target", "verify"))["target"]
        check_arrival(self.sync_plan.plan, self._sent, received)
        return received

    def _step(
        self, name: str, sides: Sequence[Side], function: Callable[..., object], *columns: Sequence[object]
    ) -> dict[Side, list[Any]]:
        calls = {
            side: self._calls.call(side, function, self._calls.same(side, self.command), *columns) for side in sides
        }
        watched = self._group.watched(self.sync_plan, self.command.phase(name), sides)
        return run_step(name, self._calls.both_sides, calls, self._deadline, watched)


def _compare_checksums(sent: Sequence[StepResult], received: Sequence[StepResult]) -> None:
    at_source = {index: value for result in sent for index, value in result.checksums.items()}
    for rank, result in enumerate(received):
        wrong = [index for index, value in result.checksums.items() if at_source.get(index) != value]
        if wrong:
            raise WeightSyncError(
                f"bucket(s) {wrong} reached target rank {rank} with other bytes than it was sent; nothing is written"
            )
