"""WeightSync moves a model's parameters from one component's layout into another's."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from twinkle_mesh import with_known_names
from twinkle_ray.weights.controller.controller import Check, Controller, SyncOptions, donated
from twinkle_ray.weights.controller.participants import RemoteParticipants, participants_of
from twinkle_ray.weights.controller.served_controller import ServedController
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.planning.box_plan import DEFAULT_BUCKET_BYTES, BoxPlan, check_bucket_bytes
from twinkle_ray.weights.planning.manifest import MatchOptions, Rename, Select
from twinkle_ray.weights.planning.schedule import Transport, check_transport
from twinkle_ray.weights.served_weights import ServedWeights
from twinkle_ray.weights.sync_turn import SyncTurn, wait_until
from twinkle_remote.backends.support import (
    Watch,
    component_of,
    next_version,
    publishing,
    running,
    session_tool,
    takes_in_flight,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from twinkle_ray.weights.controller.participants import Participants
    from twinkle_ray.weights.controller.protocol import SyncController
    from twinkle_ray.weights.delivery import WeightDelivery
    from twinkle_ray.weights.messages import Side
    from twinkle_remote.backends.support import WorkersOf
    from twinkle_remote.protocol import Component


T = TypeVar("T")
_log = logging.getLogger("twinkle.ray")
_PATIENCE = 5.0  # times as long as giving weights took, a rank waits for the next sync before it is given them again


class WeightSync:
    """Moves weights from `source` to `target`; each rank sends and receives its own blocks only.

    Both are components with a method `weights()` that returns, on each worker, a mapping from name to tensor, DTensor
    or `Shard`. A call plans the transfer from both sides' shards (once), sends from worker to worker, and writes the
    target's tensors in place when everything has arrived, or replaces their memory where the target returns
    `ReplaceableWeights`. It then calls the target's `on_weights(version)`, if there is one. After any failure the
    target has the weights that it had, and the next call works.

    Args:
        source: The component whose weights are read.
        target: The component whose weights are written.
        bucket_bytes: Small blocks are packed up to this size, and larger ones are cut to it; at least 1 MiB.
        timeout: Seconds for the whole of one sync.
        rename: Gives the target's name for a source name; None leaves the tensor out.
        select: The target names that take part: a predicate, or patterns such as `"*.lora_*"`; others stay as they are.
        convert: Convert tensors whose dtypes differ between the sides; without it they are an error.
        check: When to compare digests of the values: of the source's replicas before anything moves, and of both ends
            after the write. "first": in the first sync, and after layouts or workers have changed. "always": in every
            sync, which then refuses values that are not finite; the log names them elsewhere. "never": not at all.
        checksum: Compare a CRC-32 of every bucket at both ends before the write.
        keep_old: Keep the old values, by one copy more, to go back if a rank dies in the write; else it is no failure.
        transport: "auto" (by reference within a process, shared memory or CUDA IPC within a host, NCCL or Gloo between
            hosts), or one of "gloo", "nccl", "shared", "cuda_ipc", "object_store" for every pair of processes.
        silence: A worker without a sign of life for as many seconds counts as stopped.
        overwrite_trained: Write into weights that the target trains, too; without it they are an error.
        patience: Seconds after which a sync that is under way is named once with its ranks and stacks; None: never.

    Raises:
        ValueError: For an option out of range.
    """

    @with_known_names
    def __init__(
        self,
        source: object,
        target: object,
        *,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        timeout: float = 600.0,
        rename: Rename | None = None,
        select: Select | None = None,
        convert: bool = False,
        check: Check = "first",
        checksum: bool = False,
        keep_old: bool = False,
        transport: Transport = "auto",
        silence: float = 10.0,
        overwrite_trained: bool = False,
        patience: float | None = 60.0,
    ) -> None:
        check_transport(transport)
        for field, seconds in (("timeout", timeout), ("silence", silence)):
            if not seconds > 0:
                raise ValueError(f"{field} must be above 0 seconds, got {seconds}")
        check_bucket_bytes(bucket_bytes)
        if check not in get_args(Check):
            raise ValueError(f"check={check!r} is none of {', '.join(map(repr, get_args(Check)))}")
        self._timeout = timeout
        self._target = target
        self._watch = Watch(patience, self._report_waiting)
        given = {"bucket_bytes": bucket_bytes, "timeout": timeout, "rename": rename, "select": select}
        given |= {"convert": convert, "check": check, "checksum": checksum, "keep_old": keep_old}
        given |= {"overwrite_trained": overwrite_trained, "patience": patience}
        tool = session_tool("weight_sync", source, target, **given, transport=transport, silence=silence)
        self._options = SyncOptions(
            bucket_bytes=bucket_bytes,
            timeout=timeout,
            match_options=MatchOptions(rename, select, convert),
            check=check,
            checksum=checksum,
            keep_old=keep_old,
            transport=transport,
            silence=silence,
            overwrite_trained=overwrite_trained,
        )
        self._version = self._given = 0
        self._began = 0.0
        self._turn = SyncTurn()
        self._ranks: RemoteParticipants | None = None
        if tool is not None:
            self._controller: SyncController = ServedController(tool)
            self._served = ServedWeights(tool, target, self, lambda: self._version, lambda: self._given)
        else:
            sides: dict[Side, Participants] = {"source": participants_of(source), "target": participants_of(target)}
            self._controller = Controller(sides, self._options)
            own = sides["target"]
            if isinstance(own, RemoteParticipants):
                self._ranks = own
                running().weights.add(own.component, self)
        self._delivery: WeightDelivery | None = None
        self._open: SyncHandle | None = None

    def __call__(self) -> int:
        """Sync, and return the new version: 1 after the first sync that worked, then 2, ...

        Where the target works for an open stream, it is the stream's next version.
        Where the target works for an open stream with `ahead=n`, this returns when all of its living ranks hold the
        version; each writes it between two calls, and a rank that cannot fails the next sync. Ranks whose workers have
        ended are left out.

        Raises:
            ManifestError: If the sides do not describe the same weights; nothing has moved.
            WeightSyncError: If the sync failed; the target has the weights that it had.
        """
        with self._turn.freed_by_interrupt(), self._watch.over():
            return self._publish(self._arrived(takes_in_flight(self._target)))

    def start(self) -> SyncHandle:
        """Begin a sync, and return once the source's buckets are packed.

        The source may compute, and change its weights, while buckets travel. The target's weights change only in the
        handle's `result()`.

        Raises:
            WeightSyncError: If the sync failed so far, or an earlier one is not finished.
        """
        with self._turn.freed_by_interrupt(), self._watch.over():
            self._open = SyncHandle(self, self._begin(detached=True, in_flight=takes_in_flight(self._target)))
        return self._open

    @property
    def version(self) -> int:
        """Version of the target's weights: the number of syncs that worked, or that of the target's streams."""
        return self._version

    @property
    def given(self) -> int:
        """The version that the target was given last by this sync; 0 before the first sync, and after a load."""
        return self._given

    def state_dict(self) -> dict[str, int]:
        """The version, for a checkpoint."""
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from the version of a checkpoint: the next sync that works publishes the one after it."""
        self._version, self._given = state["version"], 0

    @property
    def delivery(self) -> WeightDelivery | None:
        """The result of the latest sync that worked; None before the first."""
        return self._delivery

    @property
    def plan(self) -> BoxPlan | None:
        """The plan of the latest sync; None before the first, after one that failed, and over HTTP."""
        sync_plan = self._controller.sync_plan
        return None if sync_plan is None else sync_plan.plan

    def close(self) -> None:
        """Have every worker give back its buffers and connections for this sync; a later call plans anew.

        Raises:
            WeightSyncError: If a worker is gone.
        """
        try:
            self._controller.close(time.monotonic() + self._timeout)
        finally:
            self._open = None
            self._turn.end()

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def leave_out(self, workers: WorkersOf) -> None:
        """Leave ranks of the target out of syncs, because their workers are started again, or are drained."""
        with self._turn.lock:
            self._own.leave_out(self._own.indices(*workers))

    def take_back(self, workers: WorkersOf) -> None:
        """Let ranks of the target take part again; the next sync finds out whether they live."""
        with self._turn.lock:
            self._own.left_out -= self._own.indices(*workers)

    def attach(self, handle: object) -> None:
        """Give another component what the target is given, from now on."""
        component = component_of(handle)
        assert component is not None

        def attach() -> None:
            self._own.attach(handle)
            running().weights.add(component, self)
            self._controller.forget()

        self._when_free(time.monotonic() + self._timeout, attach)

    def detach(self, component: Component) -> None:
        """Give a component that joined nothing any more."""

        def detach() -> None:
            self._own.detach(component)
            self._controller.forget()

        self._when_free(time.monotonic() + self._timeout, detach)

    def catch_up(self, workers: WorkersOf, donors: WorkersOf | None) -> None:
        """Give ranks that are left out the weights of other ranks; without any that give them, all get a new version.

        Args:
            workers: Ranks of the target that run nothing.
            donors: The ranks of one replica of the target.

        Raises:
            WeightSyncError: It failed; the ranks are still left out.
        """
        until, takers = time.monotonic() + self._timeout, self._own.indices(*workers)
        while donors is not None and self._version:
            version, began = self._version, time.monotonic()
            if not donated(self._own.some(*donors), self._own.some(*workers), version, self._options):
                break
            missed = self._when_free(until, partial(self._taken_back, workers))
            if missed == version or self._reaches(takers, missed, _PATIENCE * (time.monotonic() - began)):
                return
            self.leave_out(workers)
        self.take_back(workers)
        if self._version:
            try:
                self()
            except BaseException:
                self.leave_out(workers)
                raise

    def _taken_back(self, workers: WorkersOf) -> int:
        """Let ranks take part again; the version at that moment, which they may have missed."""
        self.take_back(workers)
        return self._version

    def _reaches(self, takers: frozenset[int], version: int, seconds: float) -> bool:
        """Whether a sync after that version gets to these ranks soon."""
        return wait_until(lambda: self._version > version and takers <= set(self._own.living), seconds)

    @property
    def _own(self) -> RemoteParticipants:
        assert self._ranks is not None, "only a component has ranks"
        return self._ranks

    def _report_waiting(self, seconds: float) -> None:
        """Name a sync that takes long: its target, and what the ranks that it waits for are at."""
        component = component_of(self._target)
        name = type(self._target).__name__ if component is None else f"{component.name} on group {component.group!r}"
        waits = self._controller.waits_for(seconds) or "nothing is known here of what it waits for"
        _log.warning("a WeightSync into %s has been under way for %.0f s: %s", name, seconds, waits)

    def _when_free(self, until: float, act: Callable[[], T]) -> T:
        """Do something at a moment at which no sync is under way."""
        try:
            return self._turn.when_free(until, act)
        except TimeoutError:
            error = f"another sync into this component was under way for {self._timeout:g} s"
            raise WeightSyncError(error) from None

    def _take_turn(self) -> float:
        """Wait until no other attempt is under way; returns the deadline of this one, on the monotonic clock."""
        if self._open is not None:
            raise WeightSyncError("an earlier sync is not finished: call its result() first")
        deadline = time.monotonic() + self._timeout
        self._began = time.time()
        self._when_free(deadline, self._turn.take_now)
        return deadline

    def _begin(self, *, detached: bool, in_flight: bool) -> Any:
        """Begin an attempt, as soon as no other one is under way."""
        deadline = self._take_turn()
        with self._forget_on_error():
            return self._controller.begin(self._next_version(), deadline, detached=detached, in_flight=in_flight)

    def _next_version(self) -> int:
        return next_version(self._target, self, self._version)

    def _arrived(self, in_flight: bool) -> Any:
        """An attempt that every rank of the target has written, or holds in flight; lost ranks are left out.

        Whether ranks were lost is asked before another thread can sync: that one begins with other ranks.
        """
        while True:
            deadline = self._take_turn()
            with self._forget_on_error():
                try:
                    number = self._next_version()
                    attempt = self._controller.begin(number, deadline, detached=False, in_flight=in_flight)
                    self._delivery = self._controller.commit(attempt)
                    return attempt
                except WeightSyncError:
                    if not self._controller.can_continue_without():
                        raise
                self._controller.forget()
            self._turn.end()

    def _commit(self, attempt: Any) -> Any:
        with self._forget_on_error():
            self._delivery = self._controller.commit(attempt)
        return attempt

    def _publish(self, attempt: Any) -> int:
        """Publish the version of an attempt that has arrived, and return it."""
        assert self._delivery is not None
        with self._forget_on_error(), publishing(self._target, self._began, self._delivery.version):
            self._controller.publish(attempt)
            self._version = self._given = self._delivery.version
        with self._forget_on_error():
            self._controller.finalize(attempt)
        self._turn.end()
        return self._version

    @contextmanager
    def _forget_on_error(self) -> Iterator[None]:
        """Have the next sync plan anew after any error inside."""
        try:
            yield
        except BaseException:
            self._controller.forget()
            self._open = None
            self._turn.end()
            raise


class SyncHandle:
    """A sync under way; `result()` finishes it.

    Args:
        sync: The sync.
        attempt: The attempt that it has begun.
    """

    def __init__(self, sync: WeightSync, attempt: Any) -> None:
        self._sync, self._attempt = sync, attempt
        self._version: int | None = None
        self._error: Exception | None = None

    def result(self) -> int:
        """Wait until everything has arrived, write it into the target's weights, and return the new version.

        Raises:
            WeightSyncError: If the sync failed; the target has the weights that it had.
        """
        if self._error is not None:
            raise self._error
        if self._version is None:
            self._sync._open = None
            try:
                with self._sync._watch.over():
                    self._version = self._sync._publish(self._sync._commit(self._attempt))
            except Exception as error:
                self._error = error
                raise
        return self._version
