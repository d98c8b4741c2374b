from __future__ import annotations

import gc
import weakref

from twinkle_remote.sessions.collector import collector_paused, paused_for


class Node:
    """A thing that can be part of a cycle."""

    me: Node


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
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with collector_paused(lasting=True):
            pass
        assert 0.9 * before < gc.get_freeze_count() <= before  # some of them were freed meanwhile
    finally:
        gc.unfreeze()


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
