"""Helpers that the `program` fixtures put beside each program: the outcome of a call as a line, clusters, raylets."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

import ray

import twinkle_remote as twinkle

if TYPE_CHECKING:
    from collections.abc import Callable

    from ray.cluster_utils import Cluster


def outcome(function: Callable[[], object]) -> str:
    """What a function returned or raised, and the seconds that it took, as JSON."""
    began = time.monotonic()
    value, kind, text = None, "", ""
    try:
        value = function()
    except twinkle.TwinkleError as error:
        kind, text = type(error).__name__, str(error)
    return json.dumps({"value": value, "kind": kind, "text": text, "seconds": time.monotonic() - began})


def report(name: str, function: Callable[[], object]) -> None:
    """Print the outcome of a function; `Program.report` reads it."""
    print(f"{name} {outcome(function)}\n", end="", flush=True)  # one write: Ray's threads print between two


def start_cluster(**head: Any) -> Cluster:
    """A cluster that more nodes can be added to; its head has no process that only a person would read of."""
    from ray.cluster_utils import Cluster

    os.environ.setdefault("PYTHONHASHSEED", "0")  # of its nodes: workers need no runtime environment
    unused = {"include_dashboard": False, "no_monitor": True, "include_log_monitor": False}
    return Cluster(initialize_head=True, head_node_args={**head, **unused})


def raylets(address: str | None = None) -> list[int]:
    """The process ids of the raylets of this host; with an address, only that of the node at this address."""
    nodes = ray.nodes()  # type: ignore[no-untyped-call]  # Ray's own gap
    sockets = [node["RayletSocketName"] for node in nodes if address in (None, node["NodeManagerAddress"])]
    wanted = [f"--raylet_socket_name={socket}\0".encode() for socket in sockets]  # the next node's is this and ".1"
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                line = file.read()
            with open(f"/proc/{entry}/stat", "rb") as file:
                parent = int(file.read().rpartition(b") ")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        if any(want in line for want in wanted):
            found[int(entry)] = parent
    return [pid for pid, parent in found.items() if parent not in found]  # its forks have its line until they begin
