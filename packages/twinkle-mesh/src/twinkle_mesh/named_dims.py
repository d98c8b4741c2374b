"""The named dims of a mesh and their sizes."""

from __future__ import annotations

from .rules.checks import check_names
from .rules.messages import would

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import NoReturn, Self

    from .layout.layout import Layout
    from .layout.ranks import Ranks

    Views = tuple[tuple[str, tuple[str, ...]], ...]

_set = object.__setattr__


class NamedDims:
    """Named dims and views over a layout of ranks; immutable."""

    __slots__ = ("_layout", "dim_names", "views")

    dim_names: tuple[str, ...]
    """Names of the dims, outermost first."""
    views: Views
    """Names of flattened dims, each with its dims."""
    _layout: Layout

    def __init__(self, layout: Layout, dim_names: Iterable[str], views: Views) -> None:
        names = check_names(dim_names)
        if len(names) != len(layout.shape):
            raise ValueError(
                f"dim_names={names} names {len(names)} dims, but the ranks have the shape {layout.shape}; "
                f"{len(layout.shape)} names would do"
            )
        _set(self, "_layout", layout)
        _set(self, "dim_names", names)
        _set(self, "views", views)
        if views:
            self._check_views()

    def _check_views(self) -> None:
        seen = list(self.dim_names)
        check_names([name for name, _ in self.views])
        for name, dims in self.views:
            if name in seen:
                raise ValueError(f"the view {name!r} has the name of a dim or of another view; names must differ")
            if not dims or len(set(dims)) != len(dims):
                raise ValueError(f"the view {name!r} of {dims} must stand for at least one dim, each named once")
            for dim in dims:
                self._dim(dim)
            seen.append(name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each dim, in the order of `dim_names`."""
        return self._layout.shape

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._layout.size

    @property
    def ranks(self) -> Ranks:
        """All ranks in row-major order of the dims, computed as they are read."""
        return self._layout.ranks()

    @property
    def is_regular(self) -> bool:
        """Whether the ranks are computed by arithmetic. Otherwise the mesh keeps a table of them."""
        return self._layout.table is None

    def has_dim(self, dim: str) -> bool:
        """Tell whether `dim` is one of `dim_names` (views are not)."""
        return dim in self.dim_names

    def size(self, dim: str) -> int:
        """Return the size of a dim or view; 1 for a dim that the mesh does not have."""
        names = self.dim_names
        if dim in names:
            return self._layout.shape[names.index(dim)]
        total = 1
        for view, parts in self.views:
            if view == dim:
                for part in parts:
                    total *= self._layout.shape[names.index(part)]
        return total

    @property
    def dp_size(self) -> int:
        """Size of the dp dim or view."""
        return self.size("dp")

    @property
    def fsdp_size(self) -> int:
        """Size of the fsdp dim or view."""
        return self.size("fsdp")

    @property
    def tp_size(self) -> int:
        """Size of the tp dim."""
        return self.size("tp")

    @property
    def pp_size(self) -> int:
        """Size of the pp dim."""
        return self.size("pp")

    @property
    def cp_size(self) -> int:
        """Size of the cp dim."""
        return self.size("cp")

    def _dim(self, name: str) -> int:
        if name not in self.dim_names:
            raise ValueError(f"the mesh has no dim {name!r}; {would(map(repr, self.dim_names))}")
        return self.dim_names.index(name)

    def _sizes(self) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.dim_names, self.shape, strict=True))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a mesh does not change: {name} cannot be set; build another mesh")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a mesh does not change: {name} cannot be deleted")

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self
