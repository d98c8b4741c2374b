"""A call as its caller made it, before anything is divided or sent, and its component."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Kind
    from twinkle_remote.protocol.spec import FunctionSpec


COMPONENT = "_twinkle_component"
REMOTE = "__twinkle_remote__"


@dataclass(frozen=True, slots=True)
class Component:
    """The identity of a component, which its handles carry.

    Attributes:
        group: Name of the group.
        instance: Id within the group.
        name: Name of the class.
        ranks: Ranks that hold it, ascending.
        mesh: Its mesh, or None.
    """

    group: str
    instance: str
    name: str
    ranks: tuple[int, ...]
    mesh: DeviceMesh | None


def same_component(one: Component, other: Component) -> bool:
    """Whether two name the same component, whichever of its ranks."""
    return (one.group, one.instance) == (other.group, other.instance)


class HandleBase:
    """Base of the handle classes only."""

    __slots__ = ()


# Kept outside of the objects: a copy of a component is not a component, and a class may have slots.
_in_process: dict[int, tuple[weakref.ref[object], Component]] = {}


def remember(value: object, component: Component) -> None:
    """Record that an object of this process is a component, until the object is deleted."""
    key = id(value)

    known = _in_process  # the name of a module is None when the interpreter ends
    known[key] = weakref.ref(value, lambda _: known.pop(key, None)), component


def forget_all() -> None:
    """Make the components of this process plain objects again, as `shutdown` does."""
    _in_process.clear()


def components_here() -> dict[int, object]:
    """The objects of this process that are components, by their ids."""
    found = {key: ref() for key, (ref, _) in list(_in_process.items())}
    return {key: value for key, value in found.items() if value is not None}


def component_of(value: object) -> Component | None:
    """The component of a handle, or of an object that was built in this process; None for other values."""
    if is_handle(value):
        return cast("Component", object.__getattribute__(value, COMPONENT))
    entry = _in_process.get(id(value))
    return entry[1] if entry is not None and entry[0]() is value else None


def is_handle(value: object) -> bool:
    """Whether a value is a handle and not the component itself."""
    return issubclass(type(value), HandleBase)


def is_component_type(kind: type) -> bool:
    """Whether a class is a remote class; its objects and handles are never split as data."""
    return getattr(kind, REMOTE, None) is not None


@dataclass(frozen=True, slots=True)
class Call:
    """One remote call.

    Attributes:
        kind: Kind of its tasks.
        component: The component; only its ranks are called.
        target: The class, the method's name, or the function; see `Task`.
        name: Class.method, for messages.
        spec: Options of the function; its timeout is the call's deadline, in seconds from when it was sent.
        line: File and line of the caller.
        names: Parameter names of the positional arguments, for `split`, `replicate` and messages.
        args: Positional arguments, with marks and lazy results inside; never mutated.
        kwargs: Keyword arguments, likewise.
        own_share: The caller is one of the ranks: a batch marked `sharded` is its share already, and goes whole.
        reads_ranks: The caller reads the outcome of each rank by itself, not the collected value.
        eager: The caller waits for the value and reads it at once.
        seed: What the generators are seeded with before a constructor; None for other calls.
    """

    kind: Kind
    component: Component
    target: Any
    name: str
    spec: FunctionSpec
    line: str
    names: Sequence[str] = ()
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    own_share: bool = False
    reads_ranks: bool = False
    eager: bool = False
    seed: int | None = None

    @property
    def ranks(self) -> Sequence[int]:
        """The called ranks, ascending."""
        return self.component.ranks[:1] if self.spec.execute == "first" else self.component.ranks

    @property
    def mesh(self) -> DeviceMesh | None:
        """Mesh of the component, or None."""
        return self.component.mesh

    @property
    def deadline(self) -> float | None:
        """Seconds that it may take from when it was sent; None for no limit."""
        return self.spec.timeout

    def without_arguments(self) -> Call:
        """The same call, to keep while its result is there: the arguments were sent, and need not stay."""
        if not (self.args or self.kwargs):
            return self
        reads = self.reads_ranks
        return Call(self.kind, self.component, self.target, self.name, self.spec, self.line, reads_ranks=reads)

    def label(self, worker: WorkerInfo) -> str:
        """The short name of a worker, with its coordinate on the mesh."""
        mesh = self.component.mesh
        return worker.label(mesh.coordinate(worker.rank) if mesh and worker.rank in mesh else None)

    def where(self) -> str:
        """Group, number of called workers, and the mesh: `actor[8] dp=2 tp=4`."""
        mesh = self.component.mesh
        dims = () if mesh is None else zip(mesh.dim_names, mesh.shape, strict=True)
        return " ".join([f"{self.component.group}[{len(self.ranks)}]", *(f"{dim}={size}" for dim, size in dims)])
