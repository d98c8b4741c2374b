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
    """The owner of an engine's thread, which ends some time after it."""

    def __init__(self, seconds: float = 0.0) -> None:
        ended = Event()

        def run() -> None:
            ended.wait()
            sleep(seconds)

        self.thread = Thread(target=run, daemon=True)
        self.thread.start()
        vllm_loop._IN_PROCESS[self.thread] = weakref.finalize(self, ended.set)  # type: ignore[arg-type]  # of no engine


def test_an_engine_is_gone_when_the_threads_of_its_last_call_have_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def last_call(held: list[Sampler]) -> None:
        sleep(0.2)
        held.clear()

    holder = Thread(target=last_call, args=([Sampler()],))
    holder.start()
    assert not vllm_loop._is_one_alive()
    holder.join()
    monkeypatch.setattr(vllm_loop, "_RELEASE_SECONDS", 0.1)
    used = Sampler(seconds=0.5)
    assert vllm_loop._is_one_alive()
    del used
    assert not vllm_loop._is_one_alive()  # its end takes longer than the frames of a call
