"""WeightSync: a model's parameters from one component's layout into another's."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, get_args

from twinkle_ray.weights.controller.controller import Check, Controller, StartedSync, SyncOptions
from twinkle_ray.weights.controller.participants import participants_of
from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.planning.manifest import MatchOptions, Rename, Select
from twinkle_ray.weights.planning.routes import Transport, check_transport
from twinkle_ray.weights.planning.transfer_plan import DEFAULT_BUCKET_BYTES, TransferPlan, check_bucket_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from twinkle_ray.weights.delivery import WeightDelivery


class WeightSync:
    """Moves weights from `source` to `target`, each rank sending and receiving its own blocks only.

    Both are components with a method `weights()` that returns, on each worker, a mapping from name to tensor, DTensor
    or `Shard`. A call moves them: it plans from both sides' shards (once), sends worker to worker, writes the target's
    tensors in place when everything has arrived, and calls the target's `on_weights(version)` where it has that. On any
    failure the target keeps the weights that it had, and the next call works.

    Args:
        source: Whose weights are read.
        target: Whose weights are written.
        bucket_bytes: Size at which blocks are packed together, and cut; at least 1 MiB.
        timeout: Seconds for the whole of one sync.
        rename: From a source name to the target's; None leaves the tensor out.
        select: Which target names take part: a predicate or patterns such as "*.lora_*"; the others stay as they are.
        convert: Convert where the dtypes of the sides differ, which is an error otherwise.
        check: When to compare digests of the values: of the source's replicas before anything moves, and of both ends
            once the target is written. "first" does so in the first sync, and again where layouts or workers have
            changed; "always" in every sync; "never" takes blocks of replicas from any of them.
        checksum: Compare a CRC-32 of every bucket at both ends before anything is written.
        keep_old: Keep the old values until every rank has written the new ones, so that a rank that dies at that very
            moment leaves the others as they were. Without it such a death leaves them with the new version, and a sync
            is faster by a copy.
        transport: "auto" (by reference within a process, shared memory or CUDA IPC within a host, NCCL or Gloo between
            hosts), or one of "gloo", "nccl", "shared", "cuda_ipc", "object_store" for every pair of processes.
        silence: Seconds without a sign of life after which a worker counts as stopped.

    Raises:
        ValueError: For an option out of range.
    """

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
        keep_old: bool = True,
        transport: Transport = "auto",
        silence: float = 10.0,
    ) -> None:
        check_transport(transport)
        for field, seconds in (("timeout", timeout), ("silence", silence)):
            if not seconds > 0:
                raise ValueError(f"{field} must be above 0 seconds, got {seconds}")
        check_bucket_bytes(bucket_bytes)
        if check not in get_args(Check):
            raise ValueError(f"check={check!r} is none of {', '.join(map(repr, get_args(Check)))}")
        options = SyncOptions(
            bucket_bytes=bucket_bytes,
            timeout=timeout,
            terms=MatchOptions(rename, select, convert),
            check=check,
            checksum=checksum,
            keep_old=keep_old,
            transport=transport,
            silence=silence,
        )
        self._timeout = timeout
        self._controller = Controller({"source": participants_of(source), "target": participants_of(target)}, options)
        self._version = 0
        self._delivery: WeightDelivery | None = None
        self._open: SyncHandle | None = None

    def __call__(self) -> int:
        """Sync, and return the new version: 1 after the first sync that worked, then 2, ...

        Raises:
            ManifestError: If the sides do not describe the same weights; nothing has moved.
            WeightSyncError: If it failed; the target has the weights that it had.
        """
        return self._begin(detached=False).result()

    def start(self) -> SyncHandle:
        """Begin to sync, and return once the source's buckets are packed.

        The source may compute, and change its weights, while buckets travel; the target's weights change within the
        handle's `result()`, and not before.

        Raises:
            WeightSyncError: If it failed so far, or the sync that was started before has not been finished.
        """
        self._open = self._begin(detached=True)
        return self._open

    @property
    def version(self) -> int:
        """Version of the target's weights: the number of syncs that worked."""
        return self._version

    @property
    def delivery(self) -> WeightDelivery | None:
        """What the latest sync that worked delivered; None before the first."""
        return self._delivery

    @property
    def plan(self) -> TransferPlan | None:
        """The plan of the latest sync; None before the first, and after one that failed."""
        blueprint = self._controller.blueprint
        return None if blueprint is None else blueprint.plan

    def close(self) -> None:
        """Have every worker give back what it keeps for this sync; a later call starts afresh.

        Raises:
            WeightSyncError: If a worker is gone.
        """
        try:
            self._controller.close(time.monotonic() + self._timeout)
        finally:
            self._open = None

    def __enter__(self) -> WeightSync:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()

    def _begin(self, *, detached: bool) -> SyncHandle:
        if self._open is not None:
            raise WeightSyncError("the sync that was started before is not finished: call its result() first")
        deadline = time.monotonic() + self._timeout
        with self._forgetting():
            return SyncHandle(self, self._controller.begin(self._version + 1, deadline, detached=detached))

    def _finish(self, begun: StartedSync) -> int:
        with self._forgetting():
            self._delivery = self._controller.commit(begun)
        self._version = begun.order.version
        with self._forgetting():
            self._controller.settle(begun)
        return self._version

    @contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Have the next sync start afresh when anything goes wrong inside."""
        try:
            yield
        except BaseException:
            self._controller.forget()
            self._open = None
            raise


class SyncHandle:
    """A sync under way.

    Args:
        sync: The sync.
        begun: What has been done of it.
    """

    def __init__(self, sync: WeightSync, begun: StartedSync) -> None:
        self._sync, self._begun = sync, begun
        self._version: int | None = None
        self._error: Exception | None = None

    def result(self) -> int:
        """Wait until everything has arrived, write it into the target's weights, and return the new version.

        Raises:
            WeightSyncError: If it failed; the target has the weights that it had.
        """
        if self._error is not None:
            raise self._error
        if self._version is None:
            self._sync._open = None
            try:
                self._version = self._sync._finish(self._begun)
            except Exception as error:
                self._error = error
                raise
        return self._version
