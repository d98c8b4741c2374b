"""Compares the datasets of launched processes before their first batch, through the store of their process group.

A process posts a digest of what it reads, and goes on when each data rank has posted the same one. So loaders may be
read in any order and in any thread, and of the ranks that see the same rows one reader is enough. The store runs no
collective: it needs no device, and disturbs no collective of the program.
"""

from __future__ import annotations

import pickle
import time
from collections import Counter
from hashlib import sha256
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from twinkle_data.errors import RanksDifferError
from twinkle_data.loading.same_on_ranks import check_same, first_rows

if TYPE_CHECKING:
    from twinkle_data.cursor import Identity
    from twinkle_data.order.steps import StepPlan
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Place

_PAUSE = 0.005  # seconds between two looks at the store
_LONGEST_PAUSE = 0.05
_STANDS_SECONDS = 0.5  # after which a rank that waits for others is taken to have no other reader in a thread
_PEERS_SECONDS = 2.0  # for ranks that see the same rows as one that has read them
_PREFIX = "twinkle/data/loaders"

_numbers = count()
_raised: set[bytes] = set()  # waits of other ranks that were an error here already
_passed: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()  # by store, how often a digest was compared


class _Wait(NamedTuple):
    """What a rank waits for: that each data rank reads the same."""

    number: int
    key: str
    identity: Identity
    rows: list[list[int]]


def compare_launched(identity: Identity, plan: StepPlan, mesh: DeviceMesh, place: Place) -> None:
    """Wait until each data rank of a mesh of all processes reads this dataset; do nothing without a process group.

    Args:
        identity: Of this process's dataset.
        plan: Its steps.
        mesh: Mesh of all processes.
        place: The place of this process.

    Raises:
        RanksDifferError: Another rank reads another dataset, or a data rank reads none within the group's timeout.
    """
    store = _store_of_group()
    if store is None or place.worker is not None or place.world_size != mesh.world_size or mesh.data_world_size == 1:
        return
    rows = first_rows(plan)
    digest = sha256(repr((identity, rows)).encode()).hexdigest()
    passed = _passed.setdefault(store, Counter())
    # A second loader over the same rows is compared anew.
    wait = _Wait(next(_numbers), f"{digest}/{passed[digest]}", identity, rows)
    _Comparison(store, mesh, place.rank, wait).run()
    passed[digest] += 1


class _Comparison:
    """One process's part in a comparison."""

    def __init__(self, store: Any, mesh: DeviceMesh, rank: int, mine: _Wait) -> None:
        self._store = store
        self._mesh = mesh
        self._rank = rank
        self._mine = mine
        self._seen: dict[int, tuple[bytes, float]] = {}  # waits of others, and since when

    def run(self) -> None:
        store, rank = self._store, self._rank
        seconds = store.timeout.total_seconds()
        store.set(self._key("read", rank), "1")
        store.set(f"{_PREFIX}/waits/{rank}", pickle.dumps(self._mine, protocol=5))
        began, pause = time.monotonic(), _PAUSE
        whole = None  # since when each data rank has read
        while True:
            readers = [other for other in range(self._mesh.world_size) if self._has_read(other)]
            missing = set(range(self._mesh.data_world_size)) - {self._mesh.data_rank(other) for other in readers}
            now = time.monotonic()
            if not missing and whole is None:
                whole = now
                store.set(f"{_PREFIX}/waits/{rank}", b"-")
            if whole is not None and (len(readers) == self._mesh.world_size or now - whole > _PEERS_SECONDS):
                return
            self._check_waits(set(range(self._mesh.world_size)) - set(readers), now)
            if whole is None and now - began > seconds:
                raise RanksDifferError(
                    f"rank {rank} reads a loader, and of data ranks {sorted(missing)} none read the same within "
                    f"{seconds:g} s (the timeout of the process group): their rows would go to nobody. Read it on each "
                    "data rank, or give replicate=True to a loader that one process reads alone"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check_waits(self, others: set[int], now: float) -> None:
        """Raise where another rank waits for other rows than this one, and goes on waiting."""
        for other in sorted(others):
            key = f"{_PREFIX}/waits/{other}"
            told = bytes(self._store.get(key)) if self._store.check([key]) else b"-"
            if told == b"-" or told in _raised:
                self._seen.pop(other, None)
                continue
            if self._seen.get(other, (b"", 0.0))[0] != told:
                self._seen[other] = told, now
        standing = [other for other, (_, since) in self._seen.items() if now - since > _STANDS_SECONDS]
        for other in sorted(standing):
            theirs: _Wait = pickle.loads(self._seen[other][0])
            if theirs.key == self._mine.key or other not in others:
                continue
            _raised.update(told for told, _ in self._seen.values())
            mine = self._mine
            check_same(mine.identity, mine.rows, theirs.identity, theirs.rows, (self._rank, other))

    def _has_read(self, rank: int) -> bool:
        return bool(self._store.check([self._key("read", rank)]))

    def _key(self, what: str, rank: int) -> str:
        return f"{_PREFIX}/{what}/{self._mine.key}/{rank}"


def _store_of_group() -> Any:
    """The store of torch's default process group; None without one."""
    distributed = import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return import_module("torch.distributed.distributed_c10d")._get_default_store()
