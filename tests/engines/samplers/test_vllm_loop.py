"""The end of an engine whose sampler was released, without vLLM; with it: tests/vllm."""

from __future__ import annotations

import weakref
from threading import Event, Thread
from time import sleep
from typing import TYPE_CHECKING

from twinkle_engines.samplers import vllm_loop

if TYPE_CHECKING:
    import pytest


class Sampler:
    """The owner of an engine's thread, which ends with it."""

    def __init__(self) -> None:
        end = Event()
        self.thread = Thread(target=end.wait, daemon=True)
        self.thread.start()
        weakref.finalize(self, end.set)
        vllm_loop._IN_PROCESS.add(self.thread)


def test_an_engine_is_gone_when_the_threads_of_its_last_call_have_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_call(held: list[Sampler]) -> None:
        sleep(0.2)
        held.clear()

    holder = Thread(target=last_call, args=([Sampler()],))
    holder.start()
    assert not vllm_loop._is_one_alive()
    monkeypatch.setattr(vllm_loop, "_RELEASE_SECONDS", 0.1)
    used = Sampler()
    assert vllm_loop._is_one_alive()
    del used
    assert not vllm_loop._is_one_alive()
    holder.join()
