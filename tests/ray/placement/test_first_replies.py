"""Who waits for what is starting is told of a lost node, and of time that is over."""

from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest
import ray

from twinkle_ray.cluster.node_monitor import NodeMonitor
from twinkle_ray.cluster.places import HEAD
from twinkle_ray.placement.first_replies import get_within
from twinkle_remote.errors import PlacementError

pytestmark = pytest.mark.ray

WHAT = "the workers did not start"


def test_a_lost_node_ends_the_wait_for_its_answers_alone(ray_cluster: None) -> None:
    def nothing() -> None:
        pass

    task: Any = ray.remote(resources={"nowhere": 1})(nothing)
    never, there = task.remote(), ray.put(1)
    with socket.create_server(("127.0.0.1", 0)) as head, socket.create_server(("127.0.0.1", 0)) as node:
        places = {HEAD: head.getsockname(), "node": node.getsockname()}
        with closing(NodeMonitor(places, interval=0.05, grace=0.15)) as monitor:
            assert get_within([there, there], 60, WHAT, ["node", "other"], monitor) == [1, 1]
            with pytest.raises(PlacementError, match=f"^{WHAT} within 0.1 s: 1 of 2 have not answered$"):
                get_within([there, never], 0.1, WHAT, ["other", "node"], monitor)
            node.accept()[0].close()
            node.close()
            said = f"^{WHAT}: its node at 127.0.0.1:{places['node'][1]} refuses connections: its process ended$"
            with pytest.raises(PlacementError, match=said):
                get_within([there, never], 60, WHAT, ["other", "node"], monitor)
            with pytest.raises(PlacementError, match="within 1 s: 1 of 2 have not answered"):
                get_within([there, never], 1, WHAT, ["node", "other"], monitor)
    ray.cancel(never)
