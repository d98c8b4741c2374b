"""The arguments of a stage that are the same for all rows: those that `functools.partial` gives a remote function."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_remote.call.arguments import Replicated, is_divided
from twinkle_remote.call.lazy_values.lazy import Lazy
from twinkle_remote.values.rows import equal, may_have_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.protocol.spec import FunctionSpec


@dataclass(frozen=True, slots=True, eq=False)
class FixedArguments:
    """Arguments of each call of a stage, besides its rows.

    Attributes:
        args: Those by place, before the rows.
        kwargs: Those by name.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def are_those_of(self, other: FixedArguments) -> bool:
        """Whether two stages have equal ones."""
        if len(self.args) != len(other.args) or self.kwargs.keys() != other.kwargs.keys():
            return False
        pairs = [*zip(self.args, other.args, strict=True), *((own, other.kwargs[n]) for n, own in self.kwargs.items())]
        return all(_plain(mine) is _plain(its) or equal(_plain(mine), _plain(its)) for mine, its in pairs)

    def check(self, name: str, spec: FunctionSpec, names: Sequence[str]) -> None:
        """Refuse arguments that would be divided with the rows, or taken for them.

        Args:
            name: Class.method, for messages.
            spec: The options of the function.
            names: Names of the arguments by place, the rows last.

        Raises:
            ValueError: One has rows that would be divided, or columns that `reads=` and `adds=` would name.
        """
        rows = names[len(self.args)]
        named = [*zip(names, self.args, strict=False), *self.kwargs.items()]
        divided = [key for key, value in named if is_divided(spec, key, value) and _has_rows(value)]
        if divided and not callable(spec.dispatch):
            raise ValueError(
                f"{name} divides {divided[0]} with {rows}, and as an argument of a stage's functools.partial it is the "
                "same for all rows: pass Replicate(value), or name it in replicate="
            )
        found = spec.divided(names, (*self.args, _ROWS), dict(self.kwargs), _has_rows)
        if (spec.reads or spec.adds) is not None and found is not None and found.name != rows:
            raise ValueError(
                f"{name}: reads= and adds= name columns of {found.name}, the first argument with rows, and the rows of "
                f"the stage are {rows}: name {found.name} in replicate="
            )


_ROWS = [0]


def without_partials(function: Any) -> tuple[Any, FixedArguments]:
    """The function below `functools.partial`, and the arguments that it is given.

    Raises:
        TypeError: A partial leaves a place for the rows before other arguments.
    """
    fixed = FixedArguments()
    while isinstance(function, functools.partial):
        fixed = FixedArguments((*function.args, *fixed.args), {**function.keywords, **fixed.kwargs})
        function = function.func
    gap = getattr(functools, "Placeholder", None)  # from Python 3.14 on
    if gap is not None and any(value is gap for value in fixed.args):
        raise TypeError("the rows of a stage come after the arguments of its functools.partial: give others by name")
    return function, fixed


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Replicated) else value


def _has_rows(value: Any) -> bool:
    return isinstance(_plain(value), Lazy) or may_have_rows(_plain(value))
