"""The calls in flight on each data rank, for functions that are called on one of them (`dispatch="any"`)."""

from __future__ import annotations

import threading
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING

from twinkle_remote.context import current_worker
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.modes import Load, data_peers

if TYPE_CHECKING:
    from twinkle_remote.protocol.call import Call


class Loads:
    """The loads of the data ranks of each component, as far as calls of this process make them.

    Each process counts its own calls: workers that call the same component begin at different data ranks.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[Load]] = {}
        self._lock = threading.Lock()

    def peek(self, call: Call) -> Call:
        """The call as it would go to one data rank now; nothing is counted."""
        return self._choose(call)[0]

    def take(self, call: Call) -> tuple[Call, Load]:
        """Choose the data rank of a call, which counts from now on until `end`.

        Raises:
            DispatchError: The `sticky=` argument has no text that is the same in every process.
        """
        with self._lock:
            chosen, load = self._choose(call)
            load.in_flight += 1
            load.made += 1
        return chosen, load

    def end(self, load: Load) -> None:
        """A call is over, or was not sent; called once."""
        with self._lock:
            load.in_flight -= 1

    def _choose(self, call: Call) -> tuple[Call, Load]:
        component, mode = call.component, call.spec.mode
        assert mode is not None and mode.called is not None
        peers = data_peers(component.ranks, component.mesh)
        loads = self._of.setdefault((component.group, component.instance), _new_loads(len(peers)))
        index = mode.called(loads, _sticky_text(call))
        return replace(call, component=replace(component, ranks=peers[index])), loads[index]


def _new_loads(count: int) -> list[Load]:
    """Loads of data ranks without calls; each worker goes round in its own order."""
    first = current_worker().rank or 0
    return [Load(made=(index - first) % count / count) for index in range(count)]


def _sticky_text(call: Call) -> str | None:
    """The argument that `sticky=` names, as a text that equal values have in every process; None without one."""
    name = call.spec.sticky
    if name is None:
        return None
    given = {**dict(zip(call.names, call.args, strict=True)), **call.kwargs}
    return _text(given.get(name), call.name, name)


def _text(value: object, call: str, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Real):
        return str(hash(value))  # equal for 1, 1.0 and True, and the same in every process
    if isinstance(value, tuple):
        return "\0".join([str(_text(part, call, name)) for part in value])
    raise DispatchError(
        f"{call}: sticky={name!r} sends equal values to one data rank, and needs a text, a number, bytes, or a tuple "
        f"of these; got {type(value).__name__}"
    )
