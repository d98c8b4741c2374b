"""The memory of tensors: their elements in a row, and those of a rank that share some: a write changes both."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch import Tensor


class _Extent(NamedTuple):
    """The address range of a tensor; elements of other tensors may lie in it."""

    start: int
    stop: int
    name: str
    tensor: Tensor


def in_a_row(tensor: Tensor) -> Tensor:
    """The elements in one dimension with the stride 1, so that torch can view them as another dtype; a view if it can.

    A dim of one element has any stride in a tensor that torch calls contiguous.
    """
    whole = tensor.detach().contiguous()
    return whole.as_strided((whole.numel(),), (1,))


def overlaps(tensors: Mapping[str, Sequence[Tensor]]) -> dict[str, tuple[str, ...]]:
    """For each name the earlier names, or itself, with which it shares an element's memory.

    Args:
        tensors: Blocks by name, none of them empty; the caller leaves out names that are tied to others.
    """
    extents = [_extent(name, tensor) for name, blocks in tensors.items() for tensor in blocks]
    order = {name: index for index, name in enumerate(tensors)}
    found: dict[str, dict[str, None]] = {}
    for together in _clusters(extents):
        for one, other in _sharing(together):
            first, second = sorted((one.name, other.name), key=order.__getitem__)
            found.setdefault(second, {})[first] = None
    for name, blocks in tensors.items():
        if any(_repeats(block) for block in blocks):
            found.setdefault(name, {})[name] = None
    return {name: tuple(others) for name, others in found.items()}


def _extent(name: str, tensor: Tensor) -> _Extent:
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.data_ptr()
    return _Extent(start, start + (reach + 1) * tensor.itemsize, name, tensor)


def _repeats(tensor: Tensor) -> bool:
    """Whether two indices of the tensor address one element, as in an expanded tensor."""
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _clusters(extents: Iterable[_Extent]) -> Iterator[list[_Extent]]:
    """Groups of extents that overlap, directly or through others; an extent without an overlap is left out."""
    cluster: list[_Extent] = []
    reach = 0
    for extent in sorted(extents, key=lambda extent: extent.start):
        if cluster and extent.start >= reach:
            if len(cluster) > 1:
                yield cluster
            cluster = []
        cluster.append(extent)
        reach = max(reach, extent.stop)
    if len(cluster) > 1:
        yield cluster


def _sharing(cluster: Sequence[_Extent]) -> Iterator[tuple[_Extent, _Extent]]:
    """Pairs of a cluster that share an element; two columns of one matrix share none."""
    base, unit = cluster[0].start, 0
    for extent in cluster:
        unit = gcd(unit, extent.tensor.itemsize, extent.start - base)
    size = (max(extent.stop for extent in cluster) - base) // unit
    taken = torch.zeros(size, dtype=torch.bool)
    for index, extent in enumerate(cluster):
        cells = _cells(taken, extent, base, unit)
        if bool(cells.any()):
            for other in cluster[:index]:
                alone = torch.zeros(size, dtype=torch.bool)
                _cells(alone, other, base, unit).fill_(True)
                if bool(_cells(alone, extent, base, unit).any()):
                    yield other, extent
        cells.fill_(True)


def _cells(taken: Tensor, extent: _Extent, base: int, unit: int) -> Tensor:
    """The cells of `unit` bytes that hold a tensor's elements."""
    tensor = extent.tensor
    wide = tensor.itemsize // unit
    kept = [(size, stride * wide) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    sizes, strides = [size for size, _ in kept], [stride for _, stride in kept]
    return taken.as_strided([*sizes, wide], [*strides, 1], (extent.start - base) // unit)
