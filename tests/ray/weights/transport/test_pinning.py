"""Shared memory is pinned where its blocks are on a GPU; a substitute of CUDA's runtime notes what it is asked."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from tests.fake_cuda import fake_cuda

from twinkle_ray.weights.planning.box_plan import SizedBox
from twinkle_ray.weights.planning.buckets import Bucket
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.transport import shared
from twinkle_ray.weights.transport.shared import SharedBlockStore

SIZE = 4096
BUCKETS = [
    Bucket(index, 0, (0,), "host", (index,), ("uint8",), (SizedBox(Box.whole((SIZE,)), SIZE),), SIZE)
    for index in range(3)
]


class Runtime:
    def __init__(self, code: int) -> None:
        self.code, self.pinned, self.freed = code, dict[int, int](), list[int]()

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802 - CUDA's name
        if not self.code:
            self.pinned[address] = size
        return self.code

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802 - CUDA's name
        self.freed.append(address)
        return 0


@pytest.mark.parametrize("code", [0, 2])
def test_a_file_is_pinned_once_and_until_it_is_closed(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Runtime(code)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(shared, "copy_all", _copied)
    store = SharedBlockStore(BUCKETS)
    for value in (1, 2):
        store.begin(frozenset())
        filled = [(b, [fake_cuda(torch.full((SIZE,), value, dtype=torch.uint8))]) for b in BUCKETS]
        handles = store.put(filled, copy=False)
    target = SharedBlockStore(BUCKETS)
    assert [int(target.get(b, h)[0][0]) for b, h in zip(BUCKETS, handles, strict=True)] == [2, 2, 2]
    assert list(runtime.pinned.values()) == ([3 * SIZE] if not code else []) and not runtime.freed
    store.close()
    gc.collect()
    assert runtime.freed == list(runtime.pinned)


def _copied(targets: Any, sources: Any) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source.cpu())


def test_blocks_of_the_host_pin_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "cudart", lambda: pytest.fail("nobody asks CUDA"))
    store = SharedBlockStore(BUCKETS)
    store.put([(BUCKETS[0], [torch.ones(SIZE, dtype=torch.uint8)])], copy=False)
    store.close()
