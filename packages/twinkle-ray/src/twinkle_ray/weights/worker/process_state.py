"""The state of a process between the calls of a sync: its ranks, their buffers, and the link that they share."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock, local
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.errors import LinkLostError, PeerFailedError
from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.rendezvous.heartbeat import Heartbeat
from twinkle_ray.weights.rendezvous.session import Phase, Session, SessionStore
from twinkle_ray.weights.rendezvous.store import StoreAddress, StoreServer
from twinkle_ray.weights.shards.memory import in_a_row
from twinkle_ray.weights.transport import Link, link_for
from twinkle_ray.weights.transport.packing import checksum, copy_all, empty_bytes, slot_views
from twinkle_ray.weights.worker.background import Background, build_interruptibly
from twinkle_ray.weights.worker.rounds import BufferPool, Outgoing, run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinkle_ray.weights.messages import RankAddress, Route, SyncCommand
    from twinkle_ray.weights.planning.buckets import Slot
    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.worker.rank_state import RankState


class ProcessState:
    """All ranks of one sync in this process."""

    def __init__(self) -> None:
        self.rank_states: dict[tuple[str, int], RankState] = {}
        self.lock = Lock()
        self._in_phase = local()
        self.session: Session | None = None
        self._session_store: SessionStore | None = None
        self._link: Link | None = None
        self._pool: BufferPool | None = None
        self._heartbeat: Heartbeat | None = None
        self._server: StoreServer | None = None
        self._background: Background | None = None

    def join(self, address: RankAddress, session: Session) -> None:
        """Join a session's process group, once for each process."""
        with self.lock:
            if self.session == session:
                return
            self.leave()
            self.session = session
        rank_state = self.rank_states[address.side, address.rank]
        rank_plan = rank_state.rank_plan
        assert rank_plan is not None
        self._session_store = session_store = SessionStore(session)
        self._heartbeat = heartbeat = Heartbeat(session, rank_plan.process)
        with self.watching(address, Phase(0, "join")):
            session_store.arrive(rank_plan.process)
            if session.links:
                device = rank_state.device()
                link = build_interruptibly(
                    lambda: link_for(session, session_store, rank_plan.process, device), heartbeat
                )
                self._link, self._pool = link, BufferPool(lambda nbytes: empty_bytes(nbytes, device))
                heartbeat.guard(link.abort)

    def serve(self, host: str) -> StoreAddress:
        """Open a store in this process, until the sync is closed."""
        if self._server is None:
            self._server = StoreServer(host)
        return self._server.address

    def close(self) -> None:
        """Leave the group, and end the store if this process serves it."""
        self.leave()
        if self._server is not None:
            self._server.close()

    def leave(self) -> None:
        """Leave the group, and end its messages under way."""
        if self._link is not None:
            self._link.abort()
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self._session_store is not None:
            self._session_store.close()
        self._link = self._heartbeat = self._session_store = self.session = self._background = None

    @contextmanager
    def watching(self, address: RankAddress, phase: Phase, *, begins: bool = False) -> Iterator[None]:
        """Send heartbeats during a phase, report a failure of this process at once, and stop at a peer's failure.

        A phase in a phase of the same thread is a part of it.

        Args:
            address: Of the rank.
            phase: The phase.
            begins: The controller counts this process's silence from the beginning of the phase on.

        Raises:
            PeerFailedError: Instead of an error that follows from another process's failure.
        """
        heartbeat, session_store = self._heartbeat, self._session_store
        if heartbeat is None or session_store is None or getattr(self._in_phase, "here", False):
            yield
            return
        self._in_phase.here = True
        try:
            with heartbeat.during(phase, session_store, begins=begins), self.reporting(address):
                yield
        except (RuntimeError, PeerFailedError) as error:
            if heartbeat.reason is not None:
                raise PeerFailedError(heartbeat.reason) from error
            raise
        finally:
            self._in_phase.here = False
        if heartbeat.reason is not None:
            raise PeerFailedError(heartbeat.reason)

    @contextmanager
    def beating(self, phase: Phase) -> Iterator[None]:
        """Send heartbeats during a phase that a peer's failure does not end."""
        if self._heartbeat is None or self._session_store is None:
            yield
            return
        with self._heartbeat.during(phase, self._session_store):
            yield

    def transfer(self, address: RankAddress, command: SyncCommand) -> Mapping[int, object]:
        """Put buckets into block stores, and run or start the link's rounds; returns the buckets' handles."""
        rank_state = self.rank_states[address.side, address.rank]
        rank_plan = rank_state.running(command)
        rank_state.arrived.clear()
        rank_state.checksums.clear()
        rank_state.handles.clear()
        rank_state.begin_block_stores(command.occupied)
        if address.side == "source":
            self._offer(rank_state, rank_plan, command)
        if rank_plan.lead and rank_plan.rounds:
            staging = self._staging(command)
            if command.detached:
                self._pack_all(command)
                self._background = Background(lambda: self._detached(address, rank_plan, command, staging))
            else:
                self._run_rounds(address, rank_plan, command, staging)
        return rank_state.handles

    def _offer(self, rank_state: RankState, rank_plan: RankPlan, command: SyncCommand) -> None:
        """Put the buckets of a source's rank into block stores, those of one store at once."""
        by_route: dict[Route, list[int]] = {}
        for index in rank_plan.buckets:
            by_route.setdefault(rank_plan.routes[index], []).append(index)
        by_route.pop("link", None)
        for route, indices in by_route.items():
            block_store = rank_state.block_store(route)
            filled = [(rank_plan.buckets[index], rank_state.blocks(rank_plan, index)) for index in indices]
            rank_state.handles.update(zip(indices, block_store.put(filled, copy=command.detached), strict=True))
            if command.checksum:
                for index, (bucket, _) in zip(indices, filled, strict=True):
                    rank_state.checksums[index] = checksum(block_store.get(bucket, rank_state.handles[index]))

    def wait_transfer(self) -> None:
        """Wait for the background thread, and raise its error if there is one."""
        background, self._background = self._background, None
        if background is not None:
            background.join()
            if background.error is not None:
                raise background.error

    def _detached(
        self, address: RankAddress, rank_plan: RankPlan, command: SyncCommand, staging: Mapping[int, Tensor]
    ) -> None:
        with self.watching(address, command.phase("background")):
            self._run_rounds(address, rank_plan, command, staging)

    def _run_rounds(
        self, address: RankAddress, rank_plan: RankPlan, command: SyncCommand, staging: Mapping[int, Tensor]
    ) -> None:
        assert self._link is not None, "prepare comes first"
        try:
            run_rounds(self._link, rank_plan.rounds, rank_plan.process, self._outgoing(command), staging, command.depth)
        except RuntimeError as error:
            raise LinkLostError(f"{address} lost its link to a peer: {error}") from error

    def _outgoing(self, command: SyncCommand) -> Callable[[int], Outgoing]:
        sources = {
            index: rank_state
            for (side, _), rank_state in self.rank_states.items()
            if side == "source"
            and rank_state.rank_plan is not None
            and rank_state.rank_plan.digest == command.plan_digest
            for index in rank_state.rank_plan.buckets
        }

        def outgoing(index: int) -> Outgoing:
            rank_state = sources[index]
            if index in rank_state.packed:
                return Outgoing(rank_state.packed[index], lambda: rank_state.drop_packed(index))
            assert self._pool is not None
            rank_plan = rank_state.running(command)
            bucket, blocks = rank_plan.buckets[index], rank_state.blocks(rank_plan, index)
            buffer, release = _own_bytes(blocks, bucket.slots, rank_state.device()), _nothing
            if buffer is None:
                buffer, release = self._pool.take(bucket.nbytes)
                copy_all(slot_views(bucket, buffer), blocks)
            if command.checksum:
                rank_state.checksums[index] = checksum(slot_views(bucket, buffer))
            return Outgoing(buffer, release)

        return outgoing

    def _pack_all(self, command: SyncCommand) -> None:
        for (side, _), rank_state in self.rank_states.items():
            if side == "source" and rank_state.rank_plan is not None:
                rank_plan = rank_state.running(command)
                for index, bucket in rank_plan.buckets.items():
                    if rank_plan.routes[index] == "link":
                        buffer = empty_bytes(bucket.nbytes, rank_state.device())
                        copy_all(slot_views(bucket, buffer), rank_state.blocks(rank_plan, index))
                        rank_state.packed[index] = buffer
                        if command.checksum:
                            rank_state.checksums[index] = checksum(slot_views(bucket, buffer))
                rank_state.synchronize()  # another thread sends the messages, and the component goes on

    def _staging(self, command: SyncCommand) -> dict[int, Tensor]:
        """The buffers for the buckets that arrive at this process over the link, by index."""
        staging: dict[int, Tensor] = {}
        for (side, _), rank_state in self.rank_states.items():
            if side == "target" and rank_state.rank_plan is not None:
                rank_plan = rank_state.running(command)
                for index in rank_plan.buckets:
                    if rank_plan.routes[index] == "link":
                        staging[index] = rank_state.staging(rank_plan, index)
        return staging

    @contextmanager
    def reporting(self, address: RankAddress) -> Iterator[None]:
        """Abort the session at once when this process fails, unless its failure follows from a peer's."""
        try:
            yield
        except (PeerFailedError, LinkLostError):
            raise
        except Exception as error:
            if self._session_store is not None:
                first = str(error).partition("\n")[0]
                self._session_store.abort(f"{address} failed: {type(error).__name__}: {first}")
            raise


def _own_bytes(blocks: Sequence[Tensor], slots: Sequence[Slot], device: torch.device) -> Tensor | None:
    """The user's memory as bytes, if the bucket is one block that needs no packing and no conversion."""
    if len(blocks) != 1:
        return None
    (block,) = blocks
    if not block.is_contiguous() or block.dtype != torch_dtype(slots[0].wire) or block.device != device:
        return None
    return in_a_row(block).view(torch.uint8)


def _nothing() -> None:
    """Give nothing back."""
