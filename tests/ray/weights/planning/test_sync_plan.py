from __future__ import annotations

import gc
import weakref

from twinkle_ray.weights.planning.sync_plan import collector_paused


class Node:
    """A thing that can be part of a cycle."""

    me: Node


def test_the_collector_is_off_while_a_plan_is_made_and_finds_cycles_afterwards() -> None:
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
        with collector_paused():
            pass
        assert gc.get_freeze_count() == before > 0
    finally:
        gc.unfreeze()
