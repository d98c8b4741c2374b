"""The session of this process: a driver's begins with initialize, a worker's with the worker."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_remote.context import current_worker, forked_from
from twinkle_remote.errors import DispatchError, NotInitializedError
from twinkle_remote.protocol.messages import SessionDefaults, component_of, forget_all
from twinkle_remote.protocol.spec import Load, data_peers
from twinkle_remote.sessions.pending_calls import PendingCalls
from twinkle_remote.sessions.telemetry import Stats, SyncRecord, timeline
from twinkle_remote.sessions.weights import OpenStreams, WeightSources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_mesh import DeviceGroup
    from twinkle_remote.protocol.backend import Backend, SessionTool
    from twinkle_remote.protocol.messages import Call
    from twinkle_remote.sessions.telemetry import CallRecords


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
        loads = self._of.setdefault(component.key, _new_loads(len(peers)))
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


_DEFAULTS = SessionDefaults()


@dataclass(slots=True)
class Runtime:
    """The session, in one process; a process has at most one.

    Attributes:
        mode: Name of the backend.
        backend: The backend itself.
        groups: Groups by name; may be empty.
        defaults: Whether results are lazy, how many calls may be in flight, and where failed calls are saved.
        arguments: Arguments of `initialize`.
        stats: Metrics of the latest calls.
        in_flight: Calls that are not known to be done.
        streams: The streams that are open.
        weights: What gives components their weights.
        loads: The calls in flight on data ranks that calls are given to one by one.
        released: The keys of the components that this process has released; workers know what another one has.
        closed: `shutdown` is over, or the session belongs to the parent of this forked process.
        parent: Process id of that parent; 0 if the session belongs to this process.
    """

    mode: str
    backend: Backend
    groups: dict[str, DeviceGroup] = field(default_factory=dict)
    defaults: SessionDefaults = _DEFAULTS
    arguments: dict[str, Any] = field(default_factory=dict, repr=False)  # a token may be among them
    stats: Stats = field(default_factory=Stats)
    in_flight: PendingCalls = field(init=False)
    streams: OpenStreams = field(default_factory=OpenStreams)
    weights: WeightSources = field(default_factory=WeightSources)
    loads: Loads = field(default_factory=Loads)
    released: set[tuple[str, str]] = field(default_factory=set)
    closed: bool = False
    parent: int = 0

    def __post_init__(self) -> None:
        self.forget_calls()

    def forget_calls(self) -> None:
        """Have no calls in flight: in a forked process another thread may have held their lock."""
        self.in_flight = PendingCalls(self.defaults.max_in_flight)

    def refusal(self, what: str) -> str:
        """The error text for a result that cannot be fetched because the session is closed; says what to use."""
        if self.parent:
            return f"{what} cannot be fetched here: {forked_from(self.parent)}"
        return f"twinkle was shut down before {what} was fetched"


_runtime: Runtime | None = None
_parent = 0  # in a forked process, the id of the parent whose session cannot be used here


def active() -> Runtime | None:
    """The runtime of this process; None if there is none."""
    return _runtime


def running() -> Runtime:
    """The runtime of this process.

    Raises:
        NotInitializedError: There is none.
    """
    runtime = active()
    if runtime is None:
        raise NotInitializedError(absence())
    return runtime


def raise_not_retrieved() -> None:
    """Raise the first failure whose result nobody has any more; see `PendingCalls.raise_not_retrieved`."""
    runtime = active()
    if runtime is not None:
        runtime.in_flight.raise_not_retrieved()


def absence() -> str:
    """The error text for a process without a runtime; says what to use."""
    if _parent:
        return forked_from(_parent)
    return "twinkle is not initialized: call twinkle.initialize(mode, groups=[DeviceGroup(...)]) first"


def stats() -> CallRecords:
    """Metrics of the latest calls of this process, the oldest first; `print` shows them as a table.

    They are moved bytes and seconds, by the workers' wall clocks. Calls that worker processes make are in the `stats()`
    of these.
    """
    return running().stats.records()


def write_timeline(path: str | Path) -> Path:
    """Write the latest calls of this session as trace events; https://ui.perfetto.dev opens the file.

    Each component has a track for each rank, with the chunks of streams by their rows; the driver has one for its calls
    and one for weight syncs. Times are by the workers' clocks, so between nodes they are only as exact as these clocks.

    Raises:
        NotInitializedError: There is no session.
    """
    stats, target = running().stats, Path(path)
    target.write_text(timeline(stats.records(), stats.syncs()))
    return target


def install(runtime: Runtime) -> None:
    """Set the runtime of this process."""
    global _runtime  # one runtime per process is the contract
    _runtime = runtime


def attach(mode: str, backend: Backend, defaults: SessionDefaults = _DEFAULTS) -> None:
    """Give a worker process the backend through which its components call those of other groups."""
    install(Runtime(mode, backend, defaults=defaults, arguments={"mode": mode}))


def remove(runtime: Runtime) -> None:
    """Close a runtime, and remove it from the process unless another one was installed meanwhile."""
    global _runtime  # as in `install`
    if _runtime is runtime:
        _runtime = None
    runtime.closed = runtime.in_flight.closed = True
    for call in runtime.in_flight.calls():
        call.tell(over=True)
    forget_all()


def session_tool(name: str, *args: Any, **kwargs: Any) -> SessionTool | None:
    """A tool that works where the components are, if their session is another process's; None if it is this one's.

    Its name is that of an entry point of `twinkle.session_tools` there. Its arguments are components, and what travels.

    Raises:
        DispatchError: An argument cannot be sent.
        BackendError: There is no such tool.
    """
    runtime = _runtime
    return None if runtime is None else runtime.backend.tool(name, args, kwargs)


def leave_to_parent() -> None:
    """In a forked process: leave the session to the parent; this process does not use it, wait for it or end it."""
    global _parent
    runtime = _runtime
    if runtime is None:
        return
    keeps_session = runtime.backend.after_fork()  # first: the backend may have to keep what calls in flight hold
    runtime.forget_calls()
    if not keeps_session:
        _parent = runtime.parent = os.getppid()
        remove(runtime)


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=leave_to_parent)


@contextmanager
def publishing(target: object, began: float | None = None, version: int | None = None) -> Iterator[None]:
    """A block in which a component is given new weights; the streams that run on it know the version after it.

    These streams begin nothing meanwhile, so that each of their calls is before the version or after it.

    Args:
        target: A component; of other values no stream knows.
        began: Wall clock when the sync began, in seconds; None for now.
        version: The number of `next_version`; None for the next one of each stream.
    """
    component = component_of(target)
    runtime = active()
    if runtime is None or component is None:
        yield
        return
    since = time.time() if began is None else began
    with runtime.streams.publishing(component, version):
        yield
        runtime.stats.synced(SyncRecord(component.name, component.group, since, time.time()))


def next_version(target: object, sync: object, last: int) -> int:
    """The version that a sync gives a target next: the one after `last`, and after those of streams that run on it.

    A sync is given the same number until the number is published.
    """
    component = component_of(target)
    runtime = active()
    return last + 1 if runtime is None or component is None else runtime.streams.next_version(component, sync, last)


def takes_in_flight(target: object) -> bool:
    """Whether a component works for an open stream, so that it takes new weights between two calls."""
    component = component_of(target)
    runtime = None if component is None else active()
    return runtime is not None and component is not None and runtime.streams.work_on(component)
