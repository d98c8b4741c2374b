"""Compares where launched processes are, and what they read, while they read, through their process group's store.

Every rank reads all rows of a stream, and every element of a sampler. So the first rank that comes to a step leaves a
mark there, and the others compare theirs with it. Nobody waits for long, and only at the first step.
"""

from __future__ import annotations

import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from twinkle_data.errors import RanksDifferError
from twinkle_data.loading.ranks.same_on_ranks import rows_differ

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

_EVERY = 64
_PAUSE = 0.01
_TEXT = 256
_FIRST_SECONDS = 60.0  # for the others to read their first rows of a stream; then a rank goes on alone


def is_compared(step: int) -> bool:
    """Whether ranks compare a step, counted from 0: at the powers of two, and at every 64th."""
    return not step & (step - 1) or not step % _EVERY


def data_ranks(mesh: DeviceMesh) -> str:
    """The data rank of each rank, with spaces; of many ranks a digest.

    Args:
        mesh: Mesh of ranks from 0 on.
    """
    text = " ".join(str(mesh.data_rank(rank)) for rank in range(mesh.world_size))
    return text if len(text) <= _TEXT else sha256(text.encode()).hexdigest()


class StepsOnRanks:
    """The steps of one loader or sampler on all processes that divide its rows.

    Args:
        store: Of the process group.
        name: Name of the loader or sampler, the same on each rank.
        mesh: Mesh of all processes.
        rank: Rank of this one.
    """

    def __init__(self, store: Any, name: str, mesh: DeviceMesh, rank: int) -> None:
        self._store = store
        self._prefix = f"twinkle/data/steps/{name}"
        self._mesh = mesh
        self._rank = rank
        self._steps = 0
        self.bad = BadOnRanks(store, name)

    def deliver(self, epoch: int, position: int, rows_digest: str, order_digest: str = "") -> None:
        """Count a step of a loader, and compare some of them.

        Args:
            epoch: Its epoch.
            position: Its position in the epoch.
            rows_digest: Digest of its rows, where this rank has read those of all ranks.
            order_digest: Digest of an order that the dataset has made in this step.

        Raises:
            RanksDifferError: Another rank is elsewhere, or has other rows.
        """
        step, self._steps = self._steps, self._steps + 1
        if order_digest:
            self.compare(f"order/{epoch}", [f"an order made while rows are read {order_digest}"])
        if not (rows_digest or is_compared(step)):
            return
        mark = [f"epoch {epoch}", f"position {position}", f"rows {rows_digest}"]
        self.compare(str(step), mark, wait_s=_FIRST_SECONDS if (rows_digest or order_digest) and not step else 0.0)

    def compare(self, step: str, mark: list[str], *, wait_s: float = 0.0) -> None:
        """Compare the mark of a step with that of the first rank that came to it.

        Args:
            step: Name of the step.
            mark: What has to be alike, as texts without line breaks.
            wait_s: Seconds to wait until each data rank has compared its first step.

        Raises:
            RanksDifferError: It differs, here or on a rank that has compared before.
        """
        try:
            self._compare(step, mark)
            if wait_s:
                self._wait_for_first(wait_s)
        except RuntimeError:  # torch's: the process group has ended, and with it what there was to compare
            return

    def _compare(self, step: str, mark: list[str]) -> None:
        self._check_failed()
        key = f"{self._prefix}/{step}"
        if self._store.add(f"{key}/ranks", 1) == 1:
            self._store.set(key, "\n".join([str(self._rank), *mark]))
            return
        first, *theirs = bytes(self._store.get(key)).decode().split("\n")
        pairs = [f"{here} and {there}" for here, there in zip(mark, theirs, strict=True) if here != there]
        if pairs:
            error = rows_differ((self._rank, int(first)), f"at step {step}: {', '.join(pairs)}")
            self._store.set(f"{self._prefix}/failed", str(error))
            raise error

    def _wait_for_first(self, seconds: float) -> None:
        """Wait until each data rank has compared its first rows, so that all of them raise where they differ."""
        self._store.set(f"{self._prefix}/first/{self._mesh.data_rank(self._rank)}", "1")
        began = time.monotonic()
        keys = [f"{self._prefix}/first/{data_rank}" for data_rank in range(self._mesh.data_world_size)]
        while not self._store.check(keys) and time.monotonic() - began < seconds:
            self._check_failed()
            time.sleep(_PAUSE)
        self._check_failed()

    def _check_failed(self) -> None:
        failed = f"{self._prefix}/failed"
        if self._store.check([failed]):
            raise RanksDifferError(bytes(self._store.get(failed)).decode())


class BadOnRanks:
    """Counts the bad samples that all processes have found with one loader, each sample once.

    Args:
        store: Of the process group.
        loader: Name of the loader, the same on each rank.
    """

    def __init__(self, store: Any, loader: str) -> None:
        self._store = store
        self._prefix = f"twinkle/data/bad/{loader}"
        self._reported: frozenset[int] = frozenset()

    def count(self, found: frozenset[int]) -> int:
        """The bad samples of all ranks so far.

        Args:
            found: Indices of all that this process has found.
        """
        for index in sorted(found - self._reported):
            if self._store.add(f"{self._prefix}/{index}", 1) == 1:  # a peer that sees the same rows finds it too
                self._store.add(f"{self._prefix}/all", 1)
        self._reported |= found
        return int(self._store.add(f"{self._prefix}/all", 0))
