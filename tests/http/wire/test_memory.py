"""Memory of buffers is zero, writable and a process's own, and is taken where it is written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from twinkle_http.wire.memory import new_buffer


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("size", [0, 1, 4096, 262_143, 262_144, 1_000_001, 5_000_001])
def test_it_has_its_size_and_can_be_written(size: int) -> None:
    buffer = new_buffer(size)
    assert len(buffer) == size and not any(buffer)
    array = np.frombuffer(buffer, np.uint8)
    array[:] = 7
    assert bytes(buffer) == b"\x07" * size


def test_pages_are_taken_when_they_are_written() -> None:
    before = resident_bytes()
    buffers = [new_buffer(1 << 30) for _ in range(8)]
    for buffer in buffers:
        buffer[:300_000] = bytes(300_000)
    assert resident_bytes() - before < len(buffers) * 1_000_000


def test_a_forked_process_has_its_own() -> None:
    buffer = new_buffer(1 << 20)
    child = os.fork()
    if not child:
        buffer[0] = 1
        os._exit(0)
    os.waitpid(child, 0)
    assert buffer[0] == 0
