"""The commit of a target rank whose parameters get new memory: it exchanges tensors, and can exchange them back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from itertools import compress
from operator import is_, or_
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from twinkle_ray.weights.planning.buckets import ALIGNMENT
from twinkle_ray.weights.transport.packing import copy_all
from twinkle_ray.weights.worker.commit import Commit, Write, differing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.nn import Parameter

    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
    from twinkle_ray.weights.shards.box import Box
    from twinkle_ray.weights.shards.fingerprint import Fingerprint
    from twinkle_ray.weights.shards.specs import LocalShards

_HEAD_BYTES = 8
_made = 0


def swaps_made() -> int:
    """A number that is another one once memory was replaced in this process."""
    return _made


def _count_swap() -> None:
    global _made
    _made += 1


class Tensors(NamedTuple):
    """The tensors of a rank, in place in memory.

    Attributes:
        fingerprint: Of what `weights()` returned.
        local_shards: The same, read.
        owners: The buffers in which some of them live.
    """

    fingerprint: Fingerprint
    local_shards: LocalShards
    owners: Sequence[ParameterBuffer]


class _Part(NamedTuple):
    """An arrived block, and the part of a parameter that it is for."""

    view: Tensor
    block: Tensor
    entry: int


@dataclass(frozen=True, slots=True, eq=False)
class _Exchange:
    """New memory for a parameter, and for those that are tied to it."""

    name: str
    parameters: Sequence[Parameter]
    tensor: Tensor
    entry: int


class SwapCommit:
    """The commit of one set of arrived blocks.

    Args:
        parameters: The parameters that may be given new memory, by their first name.
        rank_plan: The rank's plan.
        arrivals: The arrived blocks of each bucket.
        local_shards: The tensors of the rank.
        buffers: Memory in which the arrived blocks lie, and which parameters may live in.
        take_buffer: Gives memory of so many bytes on a device, in which no tensor lives.
        reversible: Have `rollback` restore the old values.

    Attributes:
        buffers: Memory in which parameters live after `apply`.
        after: The tensors of the rank after it; None before the first.
    """

    def __init__(
        self,
        parameters: Mapping[str, Sequence[Parameter]],
        rank_plan: RankPlan,
        arrivals: Mapping[int, Sequence[Tensor]],
        local_shards: LocalShards,
        buffers: Sequence[ParameterBuffer],
        take_buffer: Callable[[int, torch.device], ParameterBuffer],
        *,
        reversible: bool,
    ) -> None:
        self.after: Tensors | None = None
        self._arrivals = dict(arrivals)
        self._reversible = reversible
        parts, writes = _sorted_out(parameters, rank_plan, arrivals, local_shards)
        self._exchanges: list[_Exchange] = []
        self.buffers: list[ParameterBuffer] = []
        taken: set[int] = set()
        elsewhere: list[str] = []
        for name, of_name in parts.items():
            found = _contiguous(parameters[name][0], of_name, buffers)
            if found is None or found[1].data_ptr() in taken:
                elsewhere.append(name)
                continue
            buffer, tensor = found
            taken.add(tensor.data_ptr())
            self._exchanges.append(_Exchange(name, parameters[name], tensor, of_name[0].entry))
            self._add_owner(buffer)
        self._copies: list[tuple[Tensor, Tensor]] = []
        if reversible:
            self._move(elsewhere, parameters, parts, take_buffer)
        else:
            writes += [Write(*part[:2], owned=False, entry=part.entry) for name in elsewhere for part in parts[name]]
        self._in_place = Commit(writes, reversible=reversible)
        self._heads = _Heads([exchange.tensor for exchange in self._exchanges], self.buffers)
        self._new = [(exchange.parameters, exchange.tensor) for exchange in self._exchanges]
        self._all_entries = self._entries(range(len(self._exchanges)))
        self._every = [parameter for exchange in self._exchanges for parameter in exchange.parameters]
        self._old: list[tuple[Sequence[Parameter], Tensor]] = []

    def fits(
        self, arrivals: Mapping[int, Sequence[Tensor]], owners: Sequence[ParameterBuffer], reversible: bool
    ) -> bool:
        """Whether it is for these arrived blocks, and gives parameters memory in which none lives now."""
        return (
            self._reversible == reversible
            and not any(buffer in owners for buffer in self.buffers)
            and len(arrivals) == len(self._arrivals)
            and all(self._arrivals.get(index) is blocks for index, blocks in arrivals.items())
        )

    def apply(self, before: SwapCommit | None) -> int:
        """Give the parameters their new memory, and write the other tensors in place.

        Args:
            before: The commit that gave the parameters the memory that they have; None if it was none.

        Returns:
            The entries whose values have changed, as a set of bits.
        """
        if before is not None and not before._is_like(self):
            before = None
        self._old = []
        changed = self._in_place.apply()
        copy_all([target for target, _ in self._copies], [source for _, source in self._copies])
        changed |= self._differing(before)
        _count_swap()
        self._old = (
            [(one.parameters, one.parameters[0].data) for one in self._exchanges] if before is None else before._new
        )
        for parameters, tensor in self._new:
            for parameter in parameters:
                parameter.data = tensor
        torch.autograd.graph.increment_version(self._every)
        return changed

    def rollback(self) -> None:
        """Restore what was before `apply`, also when it was interrupted; does nothing without an `apply`."""
        old, self._old = self._old, []
        if old:
            _count_swap()
        for parameters, tensor in old:
            for parameter in parameters:
                parameter.data = tensor
        self._in_place.rollback()

    def finalize(self) -> None:
        """Forget the old values."""
        self._old = []
        self._in_place.finalize()

    def release(self) -> None:
        """Forget the arrived blocks that are not the memory of a parameter."""
        self._arrivals, self._copies = {}, []
        self._in_place = Commit([], reversible=self._reversible)

    def elsewhere(self, local_shards: LocalShards) -> list[str]:
        """The parameters that do not have the memory that `apply` gave them."""
        return [
            exchange.name
            for exchange in self._exchanges
            if exchange.tensor.data_ptr() != local_shards.pieces[exchange.name][0][1].data_ptr()
        ]

    def _add_owner(self, buffer: ParameterBuffer) -> None:
        if buffer not in self.buffers:
            self.buffers.append(buffer)

    def _move(
        self,
        names: Iterable[str],
        parameters: Mapping[str, Sequence[Parameter]],
        parts: Mapping[str, Sequence[_Part]],
        take_buffer: Callable[[int, torch.device], ParameterBuffer],
    ) -> None:
        """Have parameters whose blocks lie apart live in memory of this process, to which the blocks are copied."""
        ends: dict[torch.device, int] = {}
        offsets: dict[str, int] = {}
        for name in names:
            parameter = parameters[name][0]
            offsets[name] = -(-ends.get(parameter.device, 0) // ALIGNMENT) * ALIGNMENT
            ends[parameter.device] = offsets[name] + parameter.nbytes
        buffers = {device: take_buffer(nbytes, device) for device, nbytes in ends.items()}
        for buffer in buffers.values():
            self._add_owner(buffer)
        for name, offset in offsets.items():
            parameter = parameters[name][0]
            tensor = buffers[parameter.device].tensor_like(parameter, offset)
            self._exchanges.append(_Exchange(name, parameters[name], tensor, parts[name][0].entry))
            for view, block, _ in parts[name]:
                there = tensor.as_strided(view.shape, view.stride(), _elements_between(parameter, view))
                self._copies.append((there, block))
            if sum(part.view.numel() for part in parts[name]) < parameter.numel():
                raise AssertionError(f"the blocks of {name!r} do not cover it")

    def _differing(self, before: SwapCommit | None) -> int:
        """The entries whose values are others than those in the parameters, as a set of bits."""
        changed: set[int] = set() if before is None else set(self._heads.unlike(before._heads))
        left = [i for i in range(len(self._exchanges)) if i not in changed]
        old_and_new = [(self._exchanges[i].parameters[0].data, self._exchanges[i].tensor) for i in left]
        flags = differing([Write(*both, owned=False) for both in old_and_new])
        changed.update(compress(left, flags))
        return self._all_entries if len(changed) == len(self._exchanges) else self._entries(changed)

    def _entries(self, which: Iterable[int]) -> int:
        return reduce(or_, (1 << self._exchanges[i].entry for i in which), 0)

    def _is_like(self, other: SwapCommit) -> bool:
        return len(self._every) == len(other._every) and all(map(is_, self._every, other._every))


def _sorted_out(
    parameters: Mapping[str, Sequence[Parameter]],
    rank_plan: RankPlan,
    arrivals: Mapping[int, Sequence[Tensor]],
    local_shards: LocalShards,
) -> tuple[dict[str, list[_Part]], list[Write]]:
    """The blocks of each parameter that may get new memory, and the writes of all other blocks."""
    ties = {spec.name: spec.tie for spec in local_shards.rank_specs}
    parts: dict[str, dict[Box, _Part]] = {}
    writes: list[Write] = []
    for index, blocks in arrivals.items():
        bucket = rank_plan.buckets[index]
        for slot, block in zip(bucket.slots, blocks, strict=True):
            names = [name for name in rank_plan.entries[slot.entry].targets if name in local_shards.pieces]
            for name in names:
                for view in local_shards.views(name, slot.box):
                    if ties[name] in parameters:
                        parts.setdefault(ties[name], {})[slot.box] = _Part(view, block, slot.entry)
                    else:
                        writes.append(Write(view, block, owned=False, entry=slot.entry))
    return {name: list(of_name.values()) for name, of_name in parts.items()}, writes


def _contiguous(
    parameter: Parameter, parts: Sequence[_Part], buffers: Sequence[ParameterBuffer]
) -> tuple[ParameterBuffer, Tensor] | None:
    """The arrived blocks as one tensor in their memory, if they lie there as in the parameter."""
    starts: set[int] = set()
    for view, block, _ in parts:
        alike = (block.dtype, block.device) == (parameter.dtype, parameter.device)
        if not (alike and view.is_contiguous() and block.is_contiguous()):
            return None
        starts.add(block.data_ptr() - _elements_between(parameter, view) * parameter.itemsize)
    if len(starts) != 1 or sum(part.block.numel() for part in parts) != parameter.numel():
        return None
    (start,) = starts
    for buffer in buffers:
        offset = buffer.offset(start, parameter.nbytes)
        if offset is not None and buffer.memory.device == parameter.device and offset % parameter.itemsize == 0:
            return buffer, buffer.tensor_like(parameter, offset)
    return None


def _elements_between(parameter: Parameter, view: Tensor) -> int:
    return (view.data_ptr() - parameter.data_ptr()) // parameter.itemsize


class _Heads:
    """The first eight bytes of each tensor, which are read at once: after a step of training, most of them differ.

    Args:
        tensors: The tensors.
        buffers: In which they live; GPUs compare whole tensors at once, and are left out.
    """

    def __init__(self, tensors: Sequence[Tensor], buffers: Sequence[ParameterBuffer]) -> None:
        self._known = torch.zeros(len(tensors), dtype=torch.bool)
        self._places: list[tuple[Tensor, Tensor, Tensor]] = []
        large = [(i, tensor.data_ptr()) for i, tensor in enumerate(tensors) if tensor.nbytes >= _HEAD_BYTES]
        for buffer in buffers:
            found = [(i, buffer.offset(address, _HEAD_BYTES)) for i, address in large]
            inside = [(i, at // _HEAD_BYTES) for i, at in found if at is not None and at % _HEAD_BYTES == 0]
            if inside and buffer.memory.device.type == "cpu":
                words = buffer.memory[: buffer.memory.numel() // _HEAD_BYTES * _HEAD_BYTES].view(torch.int64)
                which, where = torch.tensor(inside).unbind(1)
                self._known[which] = True
                self._places.append((which, words, where))

    def unlike(self, other: _Heads) -> list[int]:
        """The tensors that begin with other bytes than those of `other`."""
        return ((self._read() != other._read()) & self._known & other._known).nonzero().view(-1).tolist()

    def _read(self) -> Tensor:
        heads = torch.zeros(len(self._known), dtype=torch.int64)
        for which, words, where in self._places:
            heads[which] = words[where]
        return heads
