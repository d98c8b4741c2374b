"""What a process keeps between the calls of a sync: its ranks' holdings, their buffers, and the link they share."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twinkle_ray.weights.errors import LinkLostError, PeerFailedError
from twinkle_ray.weights.planning.manifest import torch_dtype
from twinkle_ray.weights.rendezvous.heartbeat import Heartbeat
from twinkle_ray.weights.rendezvous.session import Phase, Session, SessionStore
from twinkle_ray.weights.rendezvous.store import StoreAddress, StoreServer
from twinkle_ray.weights.transport import Link, link_for
from twinkle_ray.weights.transport.packing import checksum, copy_all, empty_bytes, slot_views
from twinkle_ray.weights.worker.background import Background, build_interruptibly
from twinkle_ray.weights.worker.rounds import BufferPool, Outgoing, run_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinkle_ray.weights.messages import RankAddress, SyncCommand
    from twinkle_ray.weights.planning.buckets import Slot
    from twinkle_ray.weights.planning.rank_plan import RankPlan
    from twinkle_ray.weights.worker.rank_state import RankState


class ProcessState:
    """All ranks of one sync in this process."""

    def __init__(self) -> None:
        self.seats: dict[tuple[str, int], RankState] = {}
        self.lock = Lock()
        self.session: Session | None = None
        self._board: SessionStore | None = None
        self._link: Link | None = None
        self._pool: BufferPool | None = None
        self._watch: Heartbeat | None = None
        self._server: StoreServer | None = None
        self._background: Background | None = None

    def join(self, place: RankAddress, session: Session) -> None:
        """Become a member of a generation's group, once for each process."""
        with self.lock:
            if self.session == session:
                return
            self.leave()
            self.session = session
        seat = self.seats[place.side, place.rank]
        program = seat.program
        assert program is not None
        self._board = board = SessionStore(session)
        self._watch = watch = Heartbeat(session, program.process)
        with self.watching(place, Phase(0, "join")):
            board.arrive(program.process)
            if session.links:
                device = seat.device()
                link = build_interruptibly(lambda: link_for(session, board, program.process, device), watch)
                self._link, self._pool = link, BufferPool(lambda nbytes: empty_bytes(nbytes, device))
                watch.guard(link.abort)

    def serve(self, host: str) -> StoreAddress:
        """Open a store in this process, until the sync is closed."""
        if self._server is None:
            self._server = StoreServer(host)
        return self._server.address

    def close(self) -> None:
        """Leave, and end the store where it is here."""
        self.leave()
        if self._server is not None:
            self._server.close()

    def leave(self) -> None:
        """Leave the group, ending what is under way."""
        if self._link is not None:
            self._link.abort()
        if self._watch is not None:
            self._watch.close()
        if self._board is not None:
            self._board.close()
        self._link = self._watch = self._board = self.session = self._background = None

    @contextmanager
    def watching(self, place: RankAddress, phase: Phase) -> Iterator[None]:
        """Show life while at a phase; report a failure of one's own at once; leave at another's.

        Raises:
            PeerFailedError: Instead of an error that another process's failure has caused.
        """
        watch, board = self._watch, self._board
        if watch is None or board is None:
            yield
            return
        try:
            with watch.during(phase, board), self.reporting(place):
                yield
        except (RuntimeError, PeerFailedError) as error:
            if watch.reason is not None:
                raise PeerFailedError(watch.reason) from error
            raise
        if watch.reason is not None:
            raise PeerFailedError(watch.reason)

    @contextmanager
    def showing_life(self, phase: Phase) -> Iterator[None]:
        """Show life while at a phase that no other process's failure ends."""
        if self._watch is None or self._board is None:
            yield
            return
        with self._watch.during(phase, self._board):
            yield

    def transfer(self, place: RankAddress, order: SyncCommand) -> Mapping[int, object]:
        """Leave depots' buckets, and run the link's rounds or start them; returns the depots' handles."""
        seat = self.seats[place.side, place.rank]
        program = seat.running(order)
        seat.arrived.clear()
        seat.checksums.clear()
        seat.handles.clear()
        if place.side == "source":
            for index, bucket in program.buckets.items():
                route = program.routes[index]
                if route != "link":
                    depot = seat.depot(route)
                    seat.handles[index] = depot.leave(bucket, seat.blocks(program, index), copy=order.detached)
                    if order.checksum:
                        seat.checksums[index] = checksum(depot.take(bucket, seat.handles[index]))
        if program.lead and program.rounds:
            staging = self._staging(order)
            if order.detached:
                self._pack_all(order)
                self._background = Background(lambda: self._detached(place, program, order, staging))
            else:
                self._pump(place, program, order, staging)
        return seat.handles

    def wait_transfer(self) -> None:
        """Wait for the background's end, and raise what it met."""
        background, self._background = self._background, None
        if background is not None:
            background.join()
            if background.error is not None:
                raise background.error

    def _detached(
        self, place: RankAddress, program: RankPlan, order: SyncCommand, staging: Mapping[int, Tensor]
    ) -> None:
        with self.watching(place, order.phase("background")):
            self._pump(place, program, order, staging)

    def _pump(self, place: RankAddress, program: RankPlan, order: SyncCommand, staging: Mapping[int, Tensor]) -> None:
        assert self._link is not None, "prepare comes first"
        try:
            run_rounds(self._link, program.rounds, program.process, self._outgoing(order), staging, order.depth)
        except RuntimeError as error:
            raise LinkLostError(f"{place} lost its link to a peer: {error}") from error

    def _outgoing(self, order: SyncCommand) -> Callable[[int], Outgoing]:
        sources = {
            index: seat
            for (side, _), seat in self.seats.items()
            if side == "source" and seat.program is not None and seat.program.digest == order.program
            for index in seat.program.buckets
        }

        def outgoing(index: int) -> Outgoing:
            seat = sources[index]
            if index in seat.packed:
                return Outgoing(seat.packed[index], lambda: seat.unpack(index))
            assert self._pool is not None
            program = seat.running(order)
            bucket, blocks = program.buckets[index], seat.blocks(program, index)
            buffer, release = _own_bytes(blocks, bucket.slots, seat.device()), _nothing
            if buffer is None:
                buffer, release = self._pool.take(bucket.nbytes)
                copy_all(slot_views(bucket, buffer), blocks)
            if order.checksum:
                seat.checksums[index] = checksum(slot_views(bucket, buffer))
            return Outgoing(buffer, release)

        return outgoing

    def _pack_all(self, order: SyncCommand) -> None:
        for (side, _), seat in self.seats.items():
            if side == "source" and seat.program is not None:
                program = seat.running(order)
                for index, bucket in program.buckets.items():
                    if program.routes[index] == "link":
                        buffer = empty_bytes(bucket.nbytes, seat.device())
                        copy_all(slot_views(bucket, buffer), seat.blocks(program, index))
                        seat.packed[index] = buffer
                        if order.checksum:
                            seat.checksums[index] = checksum(slot_views(bucket, buffer))
                seat.synchronize()  # the messages leave from another thread, and the component goes on

    def _staging(self, order: SyncCommand) -> dict[int, Tensor]:
        """Where each bucket of a link that comes to this process arrives."""
        staging: dict[int, Tensor] = {}
        for (side, _), seat in self.seats.items():
            if side == "target" and seat.program is not None:
                program = seat.running(order)
                for index in program.buckets:
                    if program.routes[index] == "link":
                        staging[index] = seat.staging(program, index)
        return staging

    @contextmanager
    def reporting(self, place: RankAddress) -> Iterator[None]:
        """Tell every other process at once when this one fails on its own account."""
        try:
            yield
        except (PeerFailedError, LinkLostError):
            raise
        except Exception as error:
            if self._board is not None:
                first = str(error).partition("\n")[0]
                self._board.abort(f"{place} failed: {type(error).__name__}: {first}")
            raise


def _own_bytes(blocks: Sequence[Tensor], slots: Sequence[Slot], device: torch.device) -> Tensor | None:
    """The user's memory as bytes, where a bucket is one block that needs neither packing nor conversion."""
    if len(blocks) != 1:
        return None
    (block,) = blocks
    if not block.is_contiguous() or block.dtype != torch_dtype(slots[0].wire) or block.device != device:
        return None
    return block.reshape(-1).view(torch.uint8)


def _nothing() -> None:
    """Nothing to give back, or to end."""
