"""Ctrl-C at any step of a call in one process leaves the process as it was: the next call is a call of the driver."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING

import pytest
from tests.remote.signals import interrupted_at_step

import twinkle_remote
from twinkle_remote import current_worker, remote_class, remote_function
from twinkle_remote.running import running_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

_kept: ContextVar[int] = ContextVar("kept", default=0)


@remote_class()
class Plain:
    @remote_function()
    def ranks(self, value: int) -> int | None:
        _kept.set(value)
        return current_worker().rank

    @remote_function()
    async def later(self, value: int) -> int:
        return value


@pytest.fixture
def plain() -> Iterator[Plain]:
    with twinkle_remote.session("local", lazy_collect=False):
        yield Plain()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as a generator is closed, it is lost
@pytest.mark.parametrize("name", ["ranks", "construct"])
def test_an_interrupt_leaves_no_place_behind(plain: Plain, name: str) -> None:
    step, interrupted = 0, True
    while interrupted:
        step += 1
        interrupted = interrupted_at_step(step, (lambda: plain.ranks(3)) if name == "ranks" else Plain)
        assert current_worker().rank is None and running_worker() is None, step
        assert twinkle_remote.get(plain.later(step)) == step
    assert step > 10


def test_what_a_method_sets_in_the_programs_variables_holds_afterwards(plain: Plain) -> None:
    assert plain.ranks(5) == 0
    assert _kept.get() == 5
