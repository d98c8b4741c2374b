"""Memory files of shared memory: which is written, who sees a write, and when it ends."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
import torch

from twinkle_ray.weights.planning.box_plan import SizedBox
from twinkle_ray.weights.planning.buckets import Bucket
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.transport.shared import Segment, SharedBlockStore

if TYPE_CHECKING:
    from collections.abc import Iterator

SIZE = 3 * 4096
BUCKETS = [
    Bucket(index, 0, targets, "host", (index,), ("uint8",), (SizedBox(Box.whole((SIZE,)), SIZE),), SIZE)
    for index, targets in enumerate([(0, 1), (0, 1), (1,)])
]


def offered(store: SharedBlockStore, value: int) -> list[Segment]:
    """Put all buckets, filled with a value."""
    found = []
    for handle in store.put(
        [(bucket, [torch.full((SIZE,), value, dtype=torch.uint8)]) for bucket in BUCKETS], copy=False
    ):
        assert isinstance(handle, Segment)
        found.append(handle)
    return found


@pytest.fixture
def source() -> Iterator[SharedBlockStore]:
    store = SharedBlockStore(BUCKETS)
    yield store
    store.close()


def open_files() -> set[int]:
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{fd}"
        if os.path.lexists(path) and "twinkle-weights" in os.readlink(path):
            found.add(os.stat(path).st_ino)
    return found


def test_the_buckets_for_the_same_targets_share_a_file_that_is_written_again(source: SharedBlockStore) -> None:
    before = open_files()
    first = offered(source, 1)
    assert first[0].inode == first[1].inode != first[2].inode
    assert {handle.offset for handle in first[:2]} == {0, SIZE} and first[2].offset == 0
    source.begin(frozenset())
    assert offered(source, 2) == first
    assert len(open_files() - before) == 2


def test_a_file_in_which_tensors_live_is_not_written(source: SharedBlockStore) -> None:
    before = open_files()
    turns = [offered(source, 0)]
    target = SharedBlockStore(BUCKETS, private=True)
    for value in range(1, 6):
        last = turns[-1]
        occupied = frozenset((handle.pid, handle.inode) for handle in last)
        blocks = [target.get(bucket, handle)[0] for bucket, handle in zip(BUCKETS, last, strict=True)]
        source.begin(occupied)
        turns.append(offered(source, value))
        assert not {handle.inode for handle in turns[-1]} & {handle.inode for handle in last}
        assert all(bool((block == value - 1).all()) for block in blocks)
        target.begin(occupied)
    assert turns[1] == turns[3] == turns[5] and turns[2] == turns[4]
    assert len(open_files() - before) == 4
    source.begin(None)
    last = offered(source, 9)
    assert not {handle.inode for handle in last} & {handle.inode for turn in turns for handle in turn}
    source.close()
    target.close()
    assert bool((blocks[0] == 4).all())
    del blocks
    assert open_files() <= before


def test_what_a_target_writes_nobody_else_sees_and_the_next_values_replace(source: SharedBlockStore) -> None:
    handles = offered(source, 1)
    first, second = SharedBlockStore(BUCKETS, private=True), SharedBlockStore(BUCKETS, private=True)
    mine, theirs = first.get(BUCKETS[0], handles[0])[0], second.get(BUCKETS[0], handles[0])[0]
    mine[5000] = 7
    assert int(mine[5000]) == 7 and int(theirs[5000]) == 1
    for store in (source, first, second):
        store.begin(frozenset())
    assert offered(source, 3) == handles
    for store in (first, second):
        assert bool((store.get(BUCKETS[0], handles[0])[0] == 3).all())
        store.close()


def test_a_file_that_was_closed_is_told(source: SharedBlockStore) -> None:
    handles = offered(source, 1)
    source.close()
    target = SharedBlockStore(BUCKETS)
    with pytest.raises(OSError, match=r"No such file|has closed the memory file"):
        target.get(BUCKETS[0], handles[0])
