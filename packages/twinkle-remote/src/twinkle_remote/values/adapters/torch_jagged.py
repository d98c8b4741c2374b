"""Rows of nested tensors: cut and joined in their own layout; their ragged dim is never guessed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch  # noqa: TID253  loaded only once a caller's own value is a tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def rows(value: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Components [start, stop): a view of a jagged tensor, with the same ragged dim; of a strided one a copy."""
    if value.layout != torch.jagged:
        return _strided(value, value.unbind()[start:stop])
    held, offsets, lengths, dim = _parts(value)
    count = lengths if lengths is not None else offsets.diff()
    first = int(offsets[start]) if start < len(count) else int(offsets[-1])
    last = int((offsets[start:stop] + count[start:stop]).max()) if start < stop else first
    cut = None if lengths is None else lengths[start:stop]
    ends = offsets[start : stop + 1] - first
    if lengths is not None:
        ends = torch.cat([offsets[start:stop] - first, offsets.new_tensor([last - first])])
    return _jagged(held.narrow(dim - 1, first, last - first), ends, cut, dim)


def joined(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor of all components.

    Raises:
        ValueError: Their ragged dims differ.
    """
    if values[0].layout != torch.jagged:
        return _strided(values[0], [row for value in values for row in value.unbind()])
    parts = [_parts(rows(value, 0, value.size(0))) for value in values]
    dims = [dim for _, _, _, dim in parts]
    if len(set(dims)) > 1:
        raise ValueError(f"their ragged dims are {dims}")
    ends, position = [parts[0][1][:1]], 0
    for held, offsets, _, dim in parts:
        ends.append(offsets[1:] + position)
        position += held.size(dim - 1)
    lengths = None
    if any(own is not None for _, _, own, _ in parts):
        lengths = torch.cat([offsets.diff() if own is None else own for _, offsets, own, _ in parts])
    return _jagged(torch.cat([held for held, _, _, _ in parts], dims[0] - 1), torch.cat(ends), lengths, dims[0])


def reduced(values: Sequence[torch.Tensor], reduce: Callable[[Sequence[torch.Tensor]], torch.Tensor]) -> torch.Tensor:
    """One tensor whose components are reduced one by one.

    Args:
        values: At least one.
        reduce: Reduces tensors of one shape.

    Raises:
        ValueError: Their shapes differ.
    """
    groups = list(zip(*[value.unbind() for value in values], strict=True))
    for group in groups:
        if len({tuple(part.shape) for part in group}) > 1:
            raise ValueError(f"shapes of a component are {[tuple(part.shape) for part in group]}")
    made = [reduce(group) for group in groups]
    if values[0].layout != torch.jagged:
        return _strided(values[0], made)
    held, offsets, lengths, dim = _parts(values[0])
    if not made:
        return _jagged(held, offsets, lengths, dim)
    counts = torch.tensor([0, *(part.size(dim - 1) for part in made)], device=offsets.device)
    return _jagged(torch.cat(made, dim - 1), counts.cumsum(0), None, dim)


def _parts(value: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, int]:
    """Its values, its offsets, the lengths of components with gaps between them, and its ragged dim."""
    ragged = [dim for dim, size in enumerate(value.shape) if not isinstance(size, int)]
    return value.values(), value.offsets(), value.lengths(), ragged[0]


def _jagged(held: torch.Tensor, offsets: torch.Tensor, lengths: torch.Tensor | None, dim: int) -> torch.Tensor:
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(held, offsets, lengths, jagged_dim=dim)
    return made


def _strided(like: torch.Tensor, components: Sequence[torch.Tensor]) -> torch.Tensor:
    if components:
        return torch.nested.as_nested_tensor(list(components), layout=like.layout)
    return torch.nested.nested_tensor([], dtype=like.dtype, device=like.device, layout=like.layout)
