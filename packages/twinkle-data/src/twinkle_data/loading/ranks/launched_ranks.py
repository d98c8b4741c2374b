"""Compares the datasets of launched processes before their first batch, through the store of their process group.

A process posts a digest of what it reads, and goes on when each data rank has posted the same one. So loaders may be
read in any order and in any thread, and of the ranks that see the same rows one reader is enough. The store runs no
collective: it needs no device, and disturbs no collective of the program.
"""

from __future__ import annotations

import pickle
import time
import warnings
from collections import Counter
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from twinkle_data.errors import RanksDifferError
from twinkle_data.loading.ranks.same_on_ranks import check_same
from twinkle_data.loading.ranks.steps_on_ranks import StepsOnRanks, data_ranks

if TYPE_CHECKING:
    from twinkle_data.loading.ranks.same_on_ranks import Facts
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Place

_PAUSE = 0.005  # seconds between two looks at the store
_LONGEST_PAUSE = 0.05
_PAUSE_OF_A_RANK = 0.001  # so that the looks of many ranks together do not fill the store's process
_STANDS_SECONDS = 1.5  # after which a rank that waits for others is taken to have no other reader in a thread
_TELL_SECONDS = 20.0  # before a wait is told
_PEERS_SECONDS = 3.0  # for ranks that see the same rows as one that has read them
_PREFIX = "twinkle/data/loaders"
_NOTHING = b"-"


class _Past:
    """The comparisons that this process has made through a store."""

    def __init__(self) -> None:
        self.passed: Counter[str] = Counter()  # by digest
        self.samplers: Counter[str] = Counter()  # by type
        self.failed = 0  # the same on each rank that reads, as a comparison fails on all of them


_past: WeakKeyDictionary[Any, _Past] = WeakKeyDictionary()


def number_of(store: Any, kind: str) -> int:
    """The number of samplers of a type that this process has read before.

    Args:
        store: Of the process group.
        kind: Name of the type.
    """
    past = _past.setdefault(store, _Past())
    past.samplers[kind] += 1
    return past.samplers[kind] - 1


class _RankWait(NamedTuple):
    """The wait of a rank until each data rank reads the same."""

    round: int  # comparisons that failed before
    key: str
    facts: Facts
    whole: bool = False  # each data rank has read it, and only peers are waited for


def compare_launched(facts: Facts, mesh: DeviceMesh, place: Place) -> StepsOnRanks | None:
    """Wait until each data rank of a mesh of all processes reads this dataset; do nothing without a process group.

    Args:
        facts: Of this process's dataset, by `facts_of`.
        mesh: Mesh of all processes.
        place: The place of this process.

    Returns:
        What compares their steps, and counts the bad samples of all of them; None where nothing was compared.

    Raises:
        RanksDifferError: Another rank reads another dataset, or a data rank reads none within the group's timeout.
    """
    store = store_of_ranks(mesh, place)
    if store is None:
        return None
    facts = {**facts, "data ranks": data_ranks(mesh)}
    digest = sha256(repr(list(facts.items())).encode()).hexdigest()
    past = _past.setdefault(store, _Past())
    # A second loader over the same rows, and what comes after an error, is compared anew.
    wait = _RankWait(past.failed, f"{past.failed}/{digest}/{past.passed[digest]}", facts)
    try:
        _Comparison(store, mesh, place.rank, wait).run()
    except RanksDifferError:
        past.failed = max(past.failed, wait.round + 1)
        past.passed.clear()
        raise
    past.passed[digest] += 1
    return StepsOnRanks(store, wait.key, mesh, place.rank)


class _Comparison:
    """One process's part in a comparison."""

    def __init__(self, store: Any, mesh: DeviceMesh, rank: int, mine: _RankWait) -> None:
        self._store = store
        self._mesh = mesh
        self._rank = rank
        self._mine = mine
        self._failed = f"{_PREFIX}/failed/{mine.round}"
        self._left = set(range(mesh.world_size))  # ranks that have not read the same
        self._seen: dict[int, tuple[bytes, float]] = {}  # waits of others, and since when

    def run(self) -> None:
        self._store.set(self._key(self._rank), "1")
        self._publish(pickle.dumps(self._mine, protocol=5))
        try:
            self._wait()
        except RanksDifferError as error:
            self._store.set(self._failed, str(error))
            raise
        finally:
            self._publish(_NOTHING)

    def _wait(self) -> None:
        seconds = self._store.timeout.total_seconds()
        began, pause = time.monotonic(), _PAUSE
        longest = max(_LONGEST_PAUSE, _PAUSE_OF_A_RANK * self._mesh.world_size)
        told = False
        whole = None  # since when each data rank has read
        while True:
            if self._store.check([self._failed]):
                raise RanksDifferError(bytes(self._store.get(self._failed)).decode())
            missing = self._missing()
            now = time.monotonic()
            if not missing and whole is None:
                whole = now
                self._mine = self._mine._replace(whole=True)
                self._publish(pickle.dumps(self._mine, protocol=5))
            if whole is not None and (not self._left or now - whole > _PEERS_SECONDS):
                return
            self._check_waits(now)
            if whole is None and now - began > _TELL_SECONDS and not told:
                told = True
                warnings.warn(
                    f"rank {self._rank} has waited {_TELL_SECONDS:g} s in a loader for data ranks {missing}, which do "
                    "not read the same; a loader that one process reads alone needs replicate=True",
                    RuntimeWarning,
                    stacklevel=2,
                )
            if whole is None and now - began > seconds:
                raise RanksDifferError(
                    f"rank {self._rank} reads a loader, and of data ranks {missing} none read the same within "
                    f"{seconds:g} s (the timeout of the process group): their rows would go to nobody. Read it on each "
                    "data rank, or give replicate=True to a loader that one process reads alone"
                )
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _missing(self) -> list[int]:
        """Look for ranks that have read the same; return the data ranks of which none has."""
        if self._store.check([self._key(rank) for rank in sorted(self._left)]):
            self._left.clear()
        self._left = {rank for rank in self._left if not self._store.check([self._key(rank)])}
        read = set(range(self._mesh.world_size)) - self._left
        return sorted(set(range(self._mesh.data_world_size)) - {self._mesh.data_rank(rank) for rank in read})

    def _check_waits(self, now: float) -> None:
        """Raise where a rank that has not read the same waits for other rows, and goes on waiting."""
        for rank in sorted(self._left):
            key = f"{_PREFIX}/waits/{rank}"
            published = bytes(self._store.get(key)) if self._store.check([key]) else _NOTHING
            if published == _NOTHING:
                self._seen.pop(rank, None)
            elif self._seen.get(rank, (_NOTHING, 0.0))[0] != published:
                self._seen[rank] = published, now
        for rank in sorted(self._left & self._seen.keys()):
            published, since = self._seen[rank]
            theirs: _RankWait = pickle.loads(published)
            mine = self._mine
            both_whole = theirs.whole and mine.whole  # other peers read the other rows
            if now - since > _STANDS_SECONDS and theirs.round == mine.round and not both_whole:
                check_same(mine.facts, theirs.facts, (self._rank, rank))

    def _publish(self, wait: bytes) -> None:
        self._store.set(f"{_PREFIX}/waits/{self._rank}", wait)

    def _key(self, rank: int) -> str:
        return f"{_PREFIX}/read/{self._mine.key}/{rank}"


def store_of_ranks(mesh: DeviceMesh, place: Place) -> Any:
    """The store of the process group of all ranks of a mesh that divides rows; None where there is none.

    Args:
        mesh: The mesh.
        place: The place of this process.
    """
    if place.worker is not None or place.world_size != mesh.world_size or mesh.data_world_size == 1:
        return None
    distributed = import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()) or distributed.get_backend() == "fake":
        return None  # one process that plays a rank of a fake group would wait for ever
    return import_module("torch.distributed.distributed_c10d")._get_default_store()
