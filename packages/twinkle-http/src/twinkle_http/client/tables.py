"""Lazy arguments as plans: rows of results at the server by the names of these, so that no row passes the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_http.client.results import ServedPayload, ServedReply
from twinkle_remote.backends.support import Combined, Concat, Input, Join, LazySlot, Select, StoredRows, Take
from twinkle_remote.protocol import Replicated

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.backends.support import Node
    from twinkle_remote.protocol import InputReplies, Rows, Task


class ArgumentPlans:
    """The lazy arguments of one task.

    Args:
        task: The task.
        inputs: The replies that it waits for, and the plan of its arguments; empty if their calls are done.

    Attributes:
        used: The results that were named.
    """

    def __init__(self, task: Task, inputs: InputReplies) -> None:
        self.used: list[ServedPayload] = []
        self._task, self._inputs = task, inputs

    def tag(self, value: Any, part: Callable[[Any], Any]) -> list[Any] | None:
        """The tag of a lazy argument, or of one that is marked to go whole, on the wire; None for other values."""
        if isinstance(value, Replicated):
            return ["whole", part(value.value)]
        if isinstance(value, ServedPayload):
            self.used.append(value)
            return ["lazy", value.name]
        if not isinstance(value, LazySlot):
            return None
        plan = self._plan(self._node(value.index))
        return self.tag(plan[1], part) if isinstance(plan[1], ServedPayload) else ["table", part(plan)]

    def _node(self, index: int) -> Node:
        """The table of a lazy argument.

        Raises:
            DispatchError: A row is not there, or the columns do not fit each other.
        """
        task, plan = self._task, self._inputs.plan
        if task.reads is not None:
            reading = task.reads.values[index]
            if reading.refusal is not None:
                kind, text = reading.refusal
                raise kind(text)
            assert reading.node is not None, "a table is kept for several tasks only"
            return reading.node
        assert plan is not None
        return plan.arguments[plan.of_share[task.place][index]].node

    def _plan(self, node: Node) -> list[Any]:
        """A table as words with their arguments."""
        if isinstance(node, StoredRows):
            return _of_rows(["value", self._payload(node.payload)], node.rows)
        if isinstance(node, Combined):  # of the one worker
            return self._plan(node.of[0])
        if isinstance(node, Concat | Join):
            parts = [self._plan(one) for one in node.of]
            whole = parts[0] if len(parts) == 1 else ["concat" if isinstance(node, Concat) else "join", parts]
            return _of_rows(whole, node.order) if isinstance(node, Concat) else whole
        if isinstance(node, Select):
            return ["select", self._plan(node.of), list(node.names)]
        assert isinstance(node, Take), node
        return _of_rows(self._plan(node.of), node.rows)

    def _payload(self, payload: object) -> object:
        if not isinstance(payload, Input):
            return payload
        reply = self._inputs.replies[payload.index]
        assert isinstance(reply, ServedReply), "a reply of another backend"
        return reply.payload


def _of_rows(plan: list[Any], rows: Rows | slice | None) -> list[Any]:
    return plan if rows is None else ["take", plan, as_wire(rows)]


def as_wire(rows: Rows | slice) -> slice | list[int]:
    """Numbers of rows as the server takes them."""
    if isinstance(rows, range) and rows.step == 1:
        return slice(rows.start, rows.stop)
    return rows if isinstance(rows, slice) else list(rows)
