"""Heads and nodes that end are told of within seconds, and the session goes without them."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from twinkle_ray.cluster.node_monitor import NodeMonitor
from twinkle_ray.cluster.places import HEAD

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def listening() -> socket.socket:
    made = socket.socket()
    made.bind(("127.0.0.1", 0))
    made.listen(64)
    return made


def until(true: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end


def test_what_ends_is_lost_and_what_comes_back_is_not() -> None:
    head = listening()
    place = head.getsockname()
    told: list[Mapping[str, str]] = []
    with closing(NodeMonitor({HEAD: place}, interval=0.05, grace=0.15, report=told.append)) as monitor:
        assert monitor.lost(HEAD) is None
        head.close()
        until(lambda: monitor.lost(HEAD))
        assert (
            monitor.lost(HEAD) == f"the cluster's head at 127.0.0.1:{place[1]} refuses connections: its process ended"
        )
        with socket.create_server(place):
            until(lambda: monitor.lost(HEAD) is None)
            until(lambda: len(told) == 2)
    assert told == [{HEAD: f"the cluster's head at 127.0.0.1:{place[1]} refuses connections: its process ended"}, {}]


def test_a_node_that_never_answered_is_not_lost_and_one_that_comes_later_is_watched() -> None:
    with listening() as head, listening() as node, listening() as closed:
        never, place = closed.getsockname(), node.getsockname()
        closed.close()
        with closing(NodeMonitor({HEAD: head.getsockname(), "never": never}, interval=0.05, grace=0.15)) as monitor:
            monitor.watch({"node": place})
            node.accept()[0].close()
            node.close()
            until(lambda: monitor.lost("node"))
            assert str(monitor.lost("node")).startswith("its node at 127.0.0.1:")
            assert monitor.lost("never") is None and monitor.lost(HEAD) is None


def time_out() -> None:
    raise TimeoutError("its own")


def test_what_hangs_is_left_alone_when_the_head_is_lost() -> None:
    head = listening()
    with closing(NodeMonitor({HEAD: head.getsockname()}, interval=0.05, grace=0.15)) as monitor:
        done: list[int] = []
        monitor.during(lambda: done.append(1))
        assert done == [1]
        with pytest.raises(ZeroDivisionError):
            monitor.during(lambda: 1 // 0)
        with pytest.raises(TimeoutError, match="its own"):
            monitor.during(time_out)
        ended = threading.Event()
        head.close()
        monitor.during(ended.wait)
        monitor.during(lambda: done.append(2))
        ended.set()
        assert done == [1]
