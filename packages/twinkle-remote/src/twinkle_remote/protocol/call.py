"""A call as its caller made it: a value, before anything is divided or sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.component import Component
    from twinkle_remote.protocol.failure import WorkerInfo
    from twinkle_remote.protocol.messages import Kind
    from twinkle_remote.protocol.spec import FunctionSpec


@dataclass(frozen=True, slots=True)
class Call:
    """One remote call.

    Attributes:
        kind: Kind of its tasks.
        component: The component; only its ranks are called.
        target: The class, the method's name, the function, or the id of a generator; see `Task`.
        name: Class.method, for messages.
        spec: Options of the function; its timeout is the call's deadline, in seconds from when it was sent.
        line: File and line of the caller.
        names: Parameter names of the positional arguments, for `split`, `replicate` and messages.
        args: Positional arguments, with marks and lazy results inside; never mutated.
        kwargs: Keyword arguments, likewise.
        own_share: The caller is one of the ranks: a batch marked `sharded` is its share already, and goes whole.
        reads_ranks: The caller reads the outcome of each rank by itself, not the collected value.
        eager: The caller waits for the value and reads it at once.
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
