"""Who the running code is: workers, their helper threads, process groups, launchers."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh, current_rank, launched, use_rank
from twinkle_remote import (
    current_place,
    current_worker,
    on,
    remote_class,
    remote_function,
    session,
)

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def in_thread(ask: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def in_thread_with_context(ask: Callable[[], Any]) -> Any:
    here = contextvars.copy_context()
    return in_thread(lambda: here.run(ask))


def in_to_thread(ask: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.to_thread(ask))


def ranks() -> Any:
    return current_worker().rank, current_place().rank, current_rank()


@remote_class()
class Asker:
    @remote_function(dispatch="all", collect="none")
    def ask(self, how: Any) -> Any:
        return how(ranks)

    @remote_function(dispatch="all", collect="none")
    def alone(self) -> bool:
        return current_place().alone

    @remote_function(execute="first")
    def first_alone(self) -> bool:
        return current_place().alone


@remote_class(execute="first")
class Single:
    @remote_function()
    def alone(self) -> bool:
        return current_place().alone


def test_a_worker_and_its_threads_know_its_rank_if_they_have_its_context() -> None:
    with session("threads", groups=[DeviceGroup("some", 3, "CPU")]):
        asker = on("some").create(Asker)
        right = [(rank,) * 3 for rank in range(3)]
        for how in (lambda ask: ask(), in_thread_with_context, in_to_thread):
            assert asker.ask(how) == right
        assert asker.ask(in_thread) == [(None, 0, None)] * 3
        assert ranks() == (None, 0, None)
        assert in_thread(ranks) == (None, 0, None)
        assert in_to_thread(ranks) == (None, 0, None)
        assert asker.alone() == [False] * 3
        assert asker.first_alone()
        assert on("some").create(Single).alone()
    assert in_thread(ranks) == (None, 0, None)


def test_variables_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() is None
    assert current_place().alone
    monkeypatch.setenv("RANK", "1")
    assert (current_place().rank, current_place().world_size) == (1, None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert current_place()[:2] == (1, 4)
    assert in_thread(current_place)[:2] == (1, 4)
    with use_rank(3):
        assert current_place()[:2] == (3, None)


@pytest.mark.parametrize(
    ("rank", "size", "word"),
    [
        ("0", "0", "WORLD_SIZE='0'"),
        ("-1", "2", "RANK='-1'"),
        ("2", "2", "RANK=2"),
        (None, "2", "RANK is not"),
    ],
)
def test_variables_that_say_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, size: str | None, word: str
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    for ask in (current_place, launched, lambda: DeviceMesh.from_sizes(dp_size=2).get_slice(8)):
        with pytest.raises(ValueError, match=word):
            ask()
    with pytest.raises(ValueError, match=word), session("local"):
        pass
