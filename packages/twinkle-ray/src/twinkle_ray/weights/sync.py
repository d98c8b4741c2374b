"""WeightSync moves a model's parameters from one component's layout into another's."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from twinkle_ray.weights.driver import Driver
from twinkle_ray.weights.errors import WeightSyncError, WeightSyncTimeoutError
from twinkle_ray.weights.manifest import Convert, MatchOptions, Rename, Select
from twinkle_ray.weights.participants import participants_of
from twinkle_ray.weights.routes import Check, SyncOptions, Transport, Version, check_transport
from twinkle_ray.weights.served import ServedDriver
from twinkle_remote.backends.support import (
    active,
    component_of,
    next_version,
    publishing,
    raise_not_retrieved,
    running,
    session_tool,
    takes_in_flight,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from twinkle_ray.weights.plan import SyncPlan
    from twinkle_remote.backends.support import WorkersOf


@dataclass(frozen=True, slots=True)
class WeightDelivery:
    """The result of one sync.

    Attributes:
        version: Of the weights, counted from 1.
        moved: Bytes that left the source's ranks; a block counts once, however many ranks receive it.
    """

    version: int
    moved: int = 0


class WeightSync:
    """Moves weights from `source` to `target`; each rank gives and gets its own blocks only.

    Both are components with a method `weights()` that returns, on each worker, a mapping from name to tensor, DTensor
    or `Shard`; a mapping inside is a named set, whose tensors are called `set.name`. A call plans the transfer from
    both sides' shards (once), has the source stage a version and the target's workers get it beside their methods. When
    all have it, each of them applies it between two of its calls, and calls its `on_weights(version)`, if there is one.
    Later calls of the target run on the version, and none before. After a failure before that the target has the
    weights that it had, and the next call works. A worker that cannot apply a version ends, and the next sync says so.

    Args:
        source: The component whose weights are read.
        target: The component whose weights are written.
        rename: Gives the target's name for a source name; None leaves the tensor out.
        select: The target names that take part: a predicate, or patterns such as `"*.lora_*"`; others stay as they are.
        convert: What becomes of tensors whose dtypes differ between the sides: True casts them; a function (name,
            block, dtype) returns the block in the target's dtype, on the source's workers; without it they are an
            error.
        timeout: Seconds for the whole of one sync.
        check: When to compare a hash of each block: of the source's replicas, and of both ends, before the target
            applies it. "first": in the first sync, and after layouts or workers have changed. "always": in every sync.
            "never": not at all.
        transport: Between processes: "store" (the backend's), "nccl", or None: NCCL where each process has a GPU of its
            own, and else the store. Within a process blocks are copied, and under torchrun they are messages of its
            processes.

    Raises:
        ValueError: For an option out of range.
    """

    def __init__(
        self,
        source: object,
        target: object,
        *,
        rename: Rename | None = None,
        select: Select | None = None,
        convert: Convert = None,
        timeout: float = 600.0,
        check: Check = "first",
        transport: Transport = None,
    ) -> None:
        check_transport(transport)
        if not timeout > 0:
            raise ValueError(f"timeout must be above 0 seconds, got {timeout}")
        if check not in get_args(Check):
            raise ValueError(f"check={check!r} is none of {', '.join(map(repr, get_args(Check)))}")
        self._timeout, self._target = timeout, target
        self._version = self._given = 0
        self._lock = threading.Lock()  # held by the sync that is under way
        self._delivery: WeightDelivery | None = None
        self._open: SyncHandle | None = None
        options: dict[str, Any] = {"rename": rename, "select": select, "convert": convert, "timeout": timeout}
        tool = session_tool("weight_sync", source, target, **options, check=check, transport=transport)
        if tool is None:
            known = SyncOptions(timeout, MatchOptions(rename, select, convert), check, transport)
            self._driver: Any = Driver(participants_of(source), participants_of(target), known)
        else:
            self._driver = ServedDriver(tool, target)
        component = component_of(target)
        if component is not None:
            running().weights.add(component, self)

    def __call__(self) -> int:
        """Sync, and return the new version: 1 after the first sync that worked, then 2, ...

        Where the target works for an open stream, it is the stream's next version, and ranks whose workers have ended
        are left out. It waits until all ranks have the version, and, before that, until fewer than two versions (or
        the `max_lag` of a stream) wait to be applied on a rank.

        Raises:
            ManifestError: If the sides do not describe the same weights; nothing has moved.
            WeightSyncError: If the sync failed; the target has the weights that it had.
        """
        raise_not_retrieved()
        deadline = time.monotonic() + self._timeout
        with self._alone(deadline):
            began = time.time()
            for _ in range(3):
                version = self._stage(deadline)
                if self._driver.arrive(version, deadline, in_flight=takes_in_flight(self._target)):
                    return self._publish(version, began)
            raise WeightSyncError("weights() of the target returns other shards at each call")

    def start(self) -> SyncHandle:
        """Begin a sync, and return once the source has staged the version.

        The source may compute, and change its weights. The target's weights change only after the handle's `result()`.

        Raises:
            WeightSyncError: If the sync failed so far, or an earlier one is not finished.
        """
        raise_not_retrieved()
        deadline = time.monotonic() + self._timeout
        with self._alone(deadline):
            began = time.time()
            version = self._stage(deadline)
            if version.by_messages and not self._driver.arrive(
                version, deadline, in_flight=takes_in_flight(self._target)
            ):
                raise WeightSyncError("weights() of the target returns other shards than before: sync again")
            self._open = SyncHandle(self, version, began)
        return self._open

    @property
    def version(self) -> int:
        """Version of the target's weights: the number of syncs that worked, or that of the target's streams."""
        return self._version

    @property
    def given(self) -> int:
        """The version that the target was given last by this sync; 0 before the first sync, and after a load."""
        return self._given

    @property
    def delivery(self) -> WeightDelivery | None:
        """The result of the latest sync that worked; None before the first."""
        return self._delivery

    @property
    def plan(self) -> SyncPlan | None:
        """The plan of the latest sync; None before the first, after one that failed, and over HTTP."""
        compiled = self._driver.compiled
        return None if compiled is None else compiled.plan

    def state_dict(self) -> dict[str, int]:
        """The version, for a checkpoint."""
        return {"version": self._version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from the version of a checkpoint: the next sync that works publishes the one after it."""
        self._version, self._given = state["version"], 0

    def close(self) -> None:
        """Have every worker give back its buffers for this sync; a later call plans anew.

        It waits until the target's workers have applied what was published.

        Raises:
            WeightSyncError: If a worker is gone, or could not apply a version.
        """
        self._open = None
        self._driver.close(time.monotonic() + self._timeout)

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def leave_out(self, workers: WorkersOf) -> None:
        """Leave ranks of the target out of syncs, because their workers are started again; returns at once."""
        self._driver.leave_out(workers)

    def take_back(self, workers: WorkersOf) -> None:
        """Let ranks of the target take part again; returns at once."""
        self._driver.take_back(workers)

    def catch_up(self, workers: WorkersOf) -> None:
        """Give ranks that are left out the latest version, where it is kept; otherwise all ranks get a new one.

        Args:
            workers: Ranks of the target that run nothing.

        Raises:
            WeightSyncError: It failed; the ranks are still left out.
        """
        deadline = time.monotonic() + self._timeout
        with self._alone(deadline, between=True):
            if not self._version or self._driver.restore(workers, deadline):
                self.take_back(workers)
                return
        self.take_back(workers)
        try:
            self()
        except BaseException:
            self.leave_out(workers)
            raise

    def _stage(self, deadline: float) -> Version:
        number = next_version(self._target, self, self._version)
        in_flight = takes_in_flight(self._target)
        found: Version = self._driver.stage(number, deadline, in_flight=in_flight, most_waiting=_most(self._target))
        return found

    def _finish(self, version: Version, began: float) -> int:
        deadline = time.monotonic() + self._timeout
        with self._alone(deadline, between=True):
            in_flight = takes_in_flight(self._target)
            if not version.by_messages and not self._driver.arrive(version, deadline, in_flight=in_flight):
                raise WeightSyncError("weights() of the target returns other shards than before: sync again")
            return self._publish(version, began)

    def _publish(self, version: Version, began: float) -> int:
        """Have the version applied, so that it counts; the streams of the target begin nothing meanwhile."""
        with publishing(self._target, began, version.number):
            self._driver.publish(version)
            self._version = self._given = version.number
        self._delivery = WeightDelivery(version.number, version.moved)
        self._driver.check_applied()
        return self._version

    @contextmanager
    def _alone(self, deadline: float, *, between: bool = False) -> Iterator[None]:
        """A block in which no other sync is under way; the next one plans anew after an error.

        Args:
            deadline: On the monotonic clock, for the wait.
            between: It may be between `start` and `result`.
        """
        if self._open is not None and not between:
            raise WeightSyncError("an earlier sync is not finished: call its result() first")
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            error = f"another sync into this component was under way for {self._timeout:g} s"
            raise WeightSyncTimeoutError(error)
        try:
            yield
        except BaseException:
            self._driver.forget()
            raise
        finally:
            self._lock.release()


class SyncHandle:
    """A sync under way; `result()` finishes it.

    Args:
        sync: The sync.
        version: The version that was staged.
        began: Wall clock when it began.
    """

    def __init__(self, sync: WeightSync, version: Version, began: float) -> None:
        self._sync, self._staged, self._began = sync, version, began
        self._version: int | None = None
        self._error: Exception | None = None

    def result(self) -> int:
        """Have the target get the staged version and apply it, and return its number; waits as a sync does.

        Raises:
            WeightSyncError: If the sync failed; the target has the weights that it had.
        """
        if self._error is not None:
            raise self._error
        if self._version is None:
            self._sync._open = None
            try:
                self._version = self._sync._finish(self._staged, self._began)
            except Exception as error:
                self._error = error
                raise
        return self._version


def _most(target: object) -> int:
    """The largest `max_lag` of the streams that a component works for; 0 without one."""
    component, runtime = component_of(target), active()
    return 0 if component is None or runtime is None else runtime.streams.max_lag(component)
