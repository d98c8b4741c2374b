"""Processes of workers on any node: their stacks, and whether they are alive."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import ray

from twinkle_ray.workers.stack_dump import is_alive, read_stacks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_AGENT_SECONDS = 2.0  # in which the agent of another node must answer
_SILENT_SECONDS = 10.0  # that an agent which did not answer is not asked again
_silent_since: dict[str, float] = {}


class Process(NamedTuple):
    """A worker's process.

    Attributes:
        node: Ray's id of its node.
        pid: Its id there.
        stack: Descriptor of its stack there, from `stack_dump.offer_stack`.
    """

    node: str
    pid: int
    stack: int


def stacks_of(processes: Sequence[Process], agents: Mapping[str, Any]) -> list[str]:
    """The stack of each process, or the reason why it is not known.

    Args:
        processes: On any nodes.
        agents: The nodes' agents by node id.
    """
    here = ray.get_runtime_context().get_node_id()
    found: dict[Process, str] = {}
    for node in {process.node for process in processes}:
        there = [process for process in processes if process.node == node]
        asked = [(process.pid, process.stack) for process in there]
        stacks = read_stacks(asked) if node == here else _stacks_on_node(node, asked, agents)
        found.update(zip(there, stacks, strict=True))
    return [found[process] for process in processes]


def _stacks_on_node(node: str, asked: Sequence[tuple[int, int]], agents: Mapping[str, Any]) -> Sequence[str]:
    if node not in agents:
        return ["its stack is not known: its node cannot be asked from here"] * len(asked)
    try:
        stacks: Sequence[str] = ray.get(agents[node].stacks.remote(asked), timeout=_AGENT_SECONDS + len(asked))
    except ray.exceptions.RayError as error:
        return [f"its stack is not known: its node does not answer ({type(error).__name__})"] * len(asked)
    return stacks


def is_known_to_live(process: Process, agents: Mapping[str, Any]) -> bool:
    """Whether a process is there; False where its node does not answer.

    Args:
        process: On any node.
        agents: The nodes' agents by node id.
    """
    node, *asked = process
    if node == ray.get_runtime_context().get_node_id():
        return is_alive(*asked)
    if node not in agents or time.monotonic() - _silent_since.get(node, -_SILENT_SECONDS) < _SILENT_SECONDS:
        return False
    try:
        return bool(ray.get(agents[node].is_alive.remote(*asked), timeout=_AGENT_SECONDS))
    except ray.exceptions.RayError:
        _silent_since[node] = time.monotonic()
        return False
