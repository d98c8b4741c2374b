"""Rows of TensorDict and of tensorclasses: those of their first batch dimension."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from twinkle_remote.protocol.tables import Rows

_torch: Any = importlib.import_module("torch")


class TensorDictSplitter:
    """Splitter for `tensordict.TensorDictBase` and tensorclasses."""

    def length(self, value: Any) -> int:
        """Size of the first batch dimension.

        Raises:
            DispatchError: It has no batch dimension, so that nobody knows whether its tensors have rows.
        """
        if not value.batch_size:
            raise DispatchError(
                f"a {type(value).__name__} without batch_size does not say whether its tensors have rows: set "
                "batch_size=[rows], or pass Replicate(value) to send it whole"
            )
        return int(value.batch_size[0])

    def slice(self, value: Any, start: int, stop: int) -> Any:
        """Rows [start, stop), views of the tensors."""
        return value[start:stop]

    def take(self, value: Any, rows: Rows) -> Any:
        """Rows of these numbers."""
        return value[_torch.tensor(rows)]

    def columns(self, value: Any) -> Sequence[Hashable] | None:
        """The keys of the first level."""
        return list(value.keys())

    def sizes(self, value: Any) -> Mapping[Hashable, int]:
        """The bytes of each key of the first level, with the tensors below it."""
        found: dict[Hashable, int] = {}
        for path in value.keys(include_nested=True, leaves_only=True):
            name = path[0] if isinstance(path, tuple) else path
            nbytes = getattr(value.get(path), "nbytes", 0)  # a leaf may be no tensor
            found[name] = found.get(name, 0) + (nbytes if isinstance(nbytes, int) else 0)
        return found

    def select(self, value: Any, names: Sequence[Hashable]) -> Any:
        """The TensorDict with these keys."""
        return value.select(*names)

    def join(self, values: Sequence[Any]) -> Any:
        """The keys of all TensorDicts, row next to row."""
        fresh = values[0].clone(recurse=False)
        for value in values[1:]:
            fresh.update(value)
        return fresh

    def concat(self, values: Sequence[Any]) -> Any:
        """One TensorDict; torch refuses other keys and shapes.

        Raises:
            ValueError: Tensors of one name differ in type.
        """
        first = values[0]
        for other in values[1:]:
            for key in first.keys(include_nested=True, leaves_only=True):
                mine, its = getattr(first.get(key), "dtype", None), getattr(other.get(key), "dtype", None)
                if mine != its:
                    raise ValueError(f"their types of {key!r} are {mine} and {its}")
        return _torch.cat(list(values), 0)


SPLITTER = TensorDictSplitter()
