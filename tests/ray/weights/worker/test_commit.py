from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.worker import commit as commit_module
from twinkle_ray.weights.worker.commit import Commit, Write

KINDS = ["float32", "bfloat16", "float8_e4m3fn", "bool", "int64"]


def pair(size: int, kind: str, owned: bool, strided: bool, converted: bool) -> Write:
    target = torch.arange(2 * size).to(getattr(torch, kind))
    view = target[::2] if strided else target[:size]
    source = (torch.arange(size) + 7).to(torch.float32 if converted else getattr(torch, kind))
    return Write(view, source, owned)


writes = st.lists(
    st.builds(pair, st.integers(0, 40), st.sampled_from(KINDS), st.booleans(), st.booleans(), st.booleans()), max_size=6
)


@given(writes, st.booleans(), st.integers(1, 16), st.data())
@settings(max_examples=80, deadline=None)
def test_a_commit_is_whole_or_taken_back(found: list[Write], again: bool, piece: int, data: st.DataObject) -> None:
    before = [write.target.clone() for write in found]
    arrived = [write.source.clone() for write in found]
    commit_module.PIECE_ELEMENTS, saved = piece, commit_module.PIECE_ELEMENTS
    try:
        commit = Commit(found, reversible=True)
    finally:
        commit_module.PIECE_ELEMENTS = saved
    commit.rollback()
    commit.apply()
    for write, value in zip(found, arrived, strict=True):
        assert write.target.float().equal(value.to(write.target.dtype).float())
    if again:
        commit.finalize()
        for write, value in zip(found, arrived, strict=True):
            write.source.copy_(value)
        before = [write.target.clone() for write in found]
        commit.apply()
    commit.rollback()
    commit.rollback()
    assert all(write.target.float().equal(value.float()) for write, value in zip(found, before, strict=True))


def test_an_interrupted_commit_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    target = torch.zeros(4 * commit_module.PIECE_ELEMENTS)
    commit = Commit([Write(target, torch.ones_like(target), owned=True)], reversible=True)
    exchange, done = commit_module._exchange, 0

    def failing(a: torch.Tensor, b: torch.Tensor, temporary: torch.Tensor) -> None:
        nonlocal done
        done += 1
        if done == 3:
            raise MemoryError
        exchange(a, b, temporary)

    monkeypatch.setattr(commit_module, "_exchange", failing)
    with pytest.raises(MemoryError):
        commit.apply()
    assert 0 < target.mean() < 1
    commit.rollback()
    assert target.abs().sum() == 0


def test_without_a_way_back_a_commit_is_a_copy() -> None:
    target, source = torch.zeros(3), torch.ones(3)
    commit = Commit([Write(target, source, owned=True)], reversible=False)
    commit.apply()
    commit.rollback()
    assert target.sum() == 3 and source.sum() == 3
