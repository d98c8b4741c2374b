"""Messages over NCCL, by substitutes of CUDA's streams and of the group."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from twinkle_ray.weights.transport import nccl
from twinkle_ray.weights.transport.messages import Message
from twinkle_ray.weights.transport.nccl import NcclGroup


class Raw:
    """A group of NCCL that notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def _start_coalescing(self) -> None:
        self.asked.append("begin")

    def _end_coalescing(self) -> Raw:
        self.asked.append("end")
        return self

    def synchronize(self) -> None:
        self.asked.append("wait on the stream")

    def send(self, tensors: Any, peer: int, tag: int) -> None:
        if peer == 9:
            raise RuntimeError("no such peer")
        self.asked.append(("send", peer))

    def recv(self, tensors: Any, peer: int, tag: int) -> None:
        self.asked.append(("receive", peer))

    def abort(self) -> None:
        self.asked.append("abort")


class Event:
    """What a stream has passed after so many questions."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def record(self, stream: object) -> None:
        pass

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0


class Stream:
    def wait_stream(self, other: object) -> None:
        pass


def group(monkeypatch: pytest.MonkeyPatch, questions: int, timeout: float) -> tuple[NcclGroup, Raw]:
    raw, made = Raw(), NcclGroup.__new__(NcclGroup)
    made._raw, made._device, made._timeout, made._stream = raw, torch.device("cpu"), timeout, Stream()
    monkeypatch.setattr(nccl._cuda, "Event", lambda: Event(questions))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    return made, raw


MESSAGES = [Message(1, torch.ones(2), receives=False, tag=1), Message(2, torch.zeros(2), receives=True, tag=1)]


def test_messages_are_one_group_and_the_host_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made, raw = group(monkeypatch, 3, 5.0)
    made.run(MESSAGES)
    assert raw.asked == ["begin", ("send", 1), ("receive", 2), "end", "wait on the stream"]
    made.run([])
    assert len(raw.asked) == 5


def test_messages_that_do_not_get_through_end_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made, raw = group(monkeypatch, 10**9, 0.02)
    with pytest.raises(RuntimeError, match=r"not through within 0.02 s"):
        made.run(MESSAGES)
    assert raw.asked[-1] == "abort"


def test_a_message_that_cannot_begin_leaves_no_open_group(monkeypatch: pytest.MonkeyPatch) -> None:
    made, raw = group(monkeypatch, 0, 1.0)
    with pytest.raises(RuntimeError, match="no such peer"):
        made.run([Message(9, torch.ones(1), receives=False, tag=1)])
    assert raw.asked == ["begin", "end"]


def test_torch_has_what_groups_of_nccl_call() -> None:
    """A group of one backend takes no device, unlike torch's group over several of them; also told without a GPU."""
    from torch._C import _distributed_c10d as c10d

    backend: Any = c10d.Backend
    for name in ("_start_coalescing", "_end_coalescing", "abort"):
        assert f"{name}(self: torch._C._distributed_c10d.Backend) ->" in getattr(backend, name).__doc__
    for name in ("send", "recv", "eager_connect_single_device"):
        assert callable(getattr(backend, name))
    assert "synchronize(self: torch._C._distributed_c10d.Work) ->" in (c10d.Work.synchronize.__doc__ or "")
