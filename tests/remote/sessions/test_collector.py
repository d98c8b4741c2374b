from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import weakref

import pytest

from twinkle_remote.sessions.collector import collector_paused, paused_for


class Node:
    """A thing that can be part of a cycle."""

    me: Node


@pytest.mark.slow
def test_the_collector_is_off_during_a_pause_and_finds_cycles_afterwards() -> None:
    with collector_paused():
        assert not gc.isenabled()
        made = Node()
        made.me = made
        left = weakref.ref(made)
        del made
    assert gc.isenabled()
    gc.collect()
    assert left() is None


def test_objects_that_the_user_has_frozen_stay_frozen() -> None:
    """In a process of its own: here other tests' objects would be frozen, and freed meanwhile."""
    program = """
        import gc
        from twinkle_remote.sessions.collector import collector_paused

        gc.freeze()
        before = gc.get_freeze_count()
        with collector_paused(lasting=True):
            pass
        print(before > 0, gc.get_freeze_count() - before)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert out.stdout == "True 0\n", out.stderr


def test_the_collector_runs_again_after_the_last_of_several_pauses() -> None:
    with collector_paused():
        with collector_paused(lasting=True):
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_the_user_has_switched_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused(lasting=True):
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_calls_of_few_ranks_do_not_pause_the_collector() -> None:
    with paused_for(8):
        assert gc.isenabled()
    with paused_for(100_000):
        assert not gc.isenabled()
