"""Segments and their private mappings: who sees whose writes, when a file is written again, and who may die."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pytest
import torch

from twinkle_ray.objects import segments
from twinkle_ray.objects.pickling import pack
from twinkle_ray.objects.segments import GoneError, Placed, SegmentRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_ray.objects.segments import SegmentFile

SIZE = 1 << 20


@pytest.fixture
def pool() -> Iterator[segments.SegmentPool]:
    made = segments.SegmentPool()
    yield made
    made.close()


def put(
    pool: segments.SegmentPool, *arrays: np.ndarray[Any, Any]
) -> tuple[SegmentRef, list[tuple[int, int]], SegmentFile]:
    found = pool.put(arrays)
    assert found is not None
    segment, starts, file = found
    return segment, [(start, array.nbytes) for start, array in zip(starts, arrays, strict=True)], file


def read(segment: SegmentRef, spans: list[tuple[int, int]]) -> list[np.ndarray[Any, Any]]:
    return [np.frombuffer(buffer, np.uint8) for buffer in segments.opened(segment, spans)]


def test_readers_write_for_themselves(pool: segments.SegmentPool) -> None:
    first, second = np.full(SIZE, 1, np.uint8), np.full(3 * SIZE + 17, 2, np.uint8)
    segment, spans, _ = put(pool, first, second)
    one, two = read(segment, spans), read(segment, spans)
    assert not one[1].flags.writeable
    mine = segments.own(one[1][5:])
    assert mine.flags.writeable and np.shares_memory(mine, one[1])
    mine[:] = 7
    assert (
        np.array_equal(two[1], second)
        and np.array_equal(one[0], first)
        and np.array_equal(read(segment, spans)[1], second)
    )
    assert one[1][4] == 2 and one[1][5] == 7


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "complex128", "datetime64[s]", "S7", "int8", "<f4,>i2"])
def test_pickled_arrays_are_what_they_were(pool: segments.SegmentPool, dtype: str, order: Literal["C", "F"]) -> None:
    array = np.zeros((300, 700), dtype=dtype, order=order)
    array.view(np.ndarray)[5:9] = np.ones((), dtype=array.dtype)
    pickled = pack({"whole": array, "part": array[10:200, 3:], "small": array[:2, :2], "tensor": torch.ones(50, 900).T})
    segment, starts, _ = pool.put(pickled.buffers) or pytest.fail("no segments here")
    spans = [(start, memoryview(buffer).nbytes) for start, buffer in zip(starts, pickled.buffers, strict=True)]
    found = Placed(pickled.head, (), segment, tuple(spans)).open()
    plain = pickled.open()
    for name in ("whole", "part", "small"):
        assert np.array_equal(found[name], plain[name]) and found[name].flags.forc == plain[name].flags.forc
        assert (found[name].dtype, found[name].flags.writeable) == (plain[name].dtype, plain[name].flags.writeable)
    assert torch.equal(found["tensor"], plain["tensor"]) and found["tensor"].stride() == plain["tensor"].stride()


def test_what_lies_in_no_mapping_is_copied() -> None:
    array = np.ones(SIZE)
    assert segments.own(array) is array, "it was made for this reader"
    array.flags.writeable = False
    for part in (array, array[10:], array.reshape(2, -1)[:, 1:]):
        mine = segments.own(part)
        assert mine.flags.writeable and not np.shares_memory(mine, array) and np.array_equal(mine, part)


def test_a_file_is_written_again_when_nobody_needs_it(pool: segments.SegmentPool) -> None:
    segment, spans, file = put(pool, np.full(SIZE, 1, np.uint8))
    reader = read(segment, spans)
    pool.release(file)
    other, _, second = put(pool, np.full(SIZE, 2, np.uint8))
    assert other.inode != segment.inode, "a reader still has the first"
    assert (reader[0] == 1).all()
    del reader
    pool.release(second)
    third, spans, _ = put(pool, np.full(SIZE // 2, 3, np.uint8))
    assert third.inode in (segment.inode, other.inode)
    assert (read(third, spans)[0] == 3).all()


def test_one_who_comes_too_late_is_told(pool: segments.SegmentPool) -> None:
    segment, spans, file = put(pool, np.zeros(SIZE, np.uint8))
    pool.release(file)
    again, _, _ = put(pool, np.ones(SIZE, np.uint8))
    assert again.inode == segment.inode
    with pytest.raises(GoneError, match="another value"):
        read(segment, spans)
    pool.close()
    with pytest.raises(GoneError, match="closed"):
        read(again, spans)


def open_segments() -> set[int]:
    """The segments that this process has open."""
    folder, found = f"/proc/{os.getpid()}/fd", set()
    for name in os.listdir(folder):
        try:
            if "twinkle-segment" in os.readlink(f"{folder}/{name}"):
                found.add(os.stat(f"{folder}/{name}").st_ino)
        except OSError:  # that of the listing itself
            pass
    return found


def test_many_mappings_do_not_use_up_descriptors(pool: segments.SegmentPool) -> None:
    segment, spans, _ = put(pool, np.arange(SIZE, dtype=np.uint8))
    held = [read(segment, spans)[0] for _ in range(segments._MOST_MAPPINGS + 10)]
    assert len(os.listdir("/proc/self/fd")) < 3 * segments._MOST_MAPPINGS
    last = segments.own(held[-1])
    last[:] = 0
    assert all(np.array_equal(one, held[0]) for one in held[:-1])
    assert np.array_equal(held[0], np.arange(SIZE, dtype=np.uint8))


def test_there_is_no_room_for_what_leaves_too_little_memory(pool: segments.SegmentPool) -> None:
    assert segments.has_room(SIZE) and not segments.has_room(1 << 50)


@pytest.mark.parametrize("seed", range(8))
def test_a_random_program_agrees_with_plain_copies(pool: segments.SegmentPool, seed: int) -> None:
    draw = random.Random(seed)
    values: dict[int, tuple[SegmentRef, list[tuple[int, int]], SegmentFile, list[np.ndarray[Any, Any]]]] = {}
    readers: dict[int, tuple[list[np.ndarray[Any, Any]], list[np.ndarray[Any, Any]]]] = {}
    for step in range(120):
        action = draw.choice(["put", "read", "read", "write", "drop", "release"])
        if action == "put":
            sizes = [draw.randrange(1, 2 * SIZE) for _ in range(draw.randrange(1, 4))]
            arrays = [np.random.default_rng([seed, step]).integers(0, 255, size, np.uint8) for size in sizes]
            values[step] = *put(pool, *arrays), arrays
        elif action == "read" and values:
            segment, spans, _, arrays = values[draw.choice(list(values))]
            readers[step] = read(segment, spans), [array.copy() for array in arrays]
        elif action == "write" and readers:
            found, expected = readers[draw.choice(list(readers))]
            at = draw.randrange(len(found))
            found[at] = segments.own(found[at])
            first = draw.randrange(len(expected[at]))
            found[at][first : first + 5000] = step
            expected[at][first : first + 5000] = step
        elif action == "drop" and readers:
            del readers[draw.choice(list(readers))]
        elif action == "release" and values:
            pool.release(values.pop(draw.choice(list(values)))[2])
        for found, expected in readers.values():
            assert all(map(np.array_equal, found, expected)), f"step {step}: {action}"


OWNER = """
    import sys, time
    import numpy as np
    from twinkle_ray.objects import segments
    segment, starts, _ = segments.pool.put([np.full(1 << 20, 3, np.uint8)])
    print(segment.pid, segment.fd, segment.inode, segment.number, segment.size, starts[0], flush=True)
    time.sleep(100)
"""
READER = """
    import sys, time
    import numpy as np
    from twinkle_ray.objects import segments
    from twinkle_ray.objects.segments import SegmentRef
    *parts, start = map(int, sys.argv[1:])
    held = segments.opened(SegmentRef(*parts), [(start, 1 << 20)])
    print(held[0][0], flush=True)
    time.sleep(100)
"""


def process(program: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def test_a_reader_keeps_what_a_killed_owner_had_put() -> None:
    with process(OWNER) as owner:
        assert owner.stdout is not None
        *parts, start = map(int, owner.stdout.readline().split())
        segment = SegmentRef(*parts)
        held = read(segment, [(start, SIZE)])[0]
        os.kill(owner.pid, signal.SIGKILL)
        owner.wait()
        assert (held == 3).all()
        mine = segments.own(held)
        mine[:] = 4
        assert (mine == 4).all()
        with pytest.raises(GoneError, match="ended"):
            read(segment, [(start, SIZE)])


def test_a_killed_reader_holds_no_file(pool: segments.SegmentPool) -> None:
    segment, spans, file = put(pool, np.full(SIZE, 9, np.uint8))
    parts = *segment, spans[0][0]
    with process(READER, *parts) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline().strip() == "9"
        pool.release(file)
        assert not file.begin()
        os.kill(reader.pid, signal.SIGKILL)
        reader.wait()
        assert file.begin()


def test_a_child_leaves_the_segments_to_its_parent() -> None:
    segment, starts, file = segments.pool.put([np.full(SIZE, 1, np.uint8)]) or pytest.fail("no segments here")
    child = os.fork()
    if child == 0:
        found = segments.pool._used or segments.pool._free or open_segments() & {segment.inode}
        os._exit(1 if found else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (read(segment, [(starts[0], SIZE)])[0] == 1).all()
    segments.pool.release(file)
    began = time.monotonic()
    assert segments.pool.put([np.zeros(SIZE, np.uint8)]) is not None and time.monotonic() - began < 10
    segments.pool.close()
