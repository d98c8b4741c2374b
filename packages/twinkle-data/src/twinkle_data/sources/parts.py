"""The objects that an object holds, and which of them knows a rank: a divided dataset is not divided again."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MOST: Final = 2000
_WIDEST: Final = 64
# The attributes by which libraries say how many parts they made, and which one this is.
_DIVISIONS: Final = (
    ("num_replicas", "rank"),  # torch's DistributedSampler and its kin
    ("world_size", "rank"),  # datasets' DistributedConfig
    ("num_processes", "process_index"),  # the shards of accelerate and Transformers
    ("num_of_instances", "instance_id"),  # torch's sharding_filter
)
_LIBRARIES: Final = frozenset(
    ("torch", "torchdata", "datasets", "accelerate", "transformers", "lightning", "pytorch_lightning", "ignite")
)


def library_of(kind: type) -> str:
    """The top package of a class."""
    return kind.__module__.partition(".")[0]


def is_of_library(kind: type) -> bool:
    """Whether a class is torch's or Hugging Face's own, not the user's."""
    return library_of(kind) in ("torch", "datasets")


def attributes_of(value: object) -> dict[str, Any]:
    """The attributes of an instance, in slots too; reading them runs no code of the class."""
    found: dict[str, Any] = {}
    for kind in reversed(type(value).__mro__):
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = vars(kind).get(name)
            try:
                found[name] = member.__get__(value, type(value))  # type: ignore[union-attr]  # a slot's descriptor
            except AttributeError:  # the slot is empty
                continue
    found.update(getattr(value, "__dict__", None) or {})
    return found


def held_by_function(value: object) -> list[Any] | None:
    """Values that a function carries: its object, arguments, defaults and closure; None for anything else."""
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(cell.cell_contents)
            except ValueError:  # not filled yet
                continue
        return [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values(), *cells]
    return None


def objects_in(value: object, enter: Callable[[Any], bool] = lambda _: True) -> Iterator[Any]:
    """An object and those that it holds, the nearest first; of long containers, the first ones.

    Args:
        value: The object.
        enter: Whether to go into an object that was found.
    """
    waiting, seen = [value], {id(value)}
    for one in waiting:
        yield one
        for part in _held(one):
            if id(part) not in seen and len(waiting) < _MOST and not _is_leaf(part) and enter(part):
                seen.add(id(part))
                waiting.append(part)


def set_epoch_in(datasets: Iterable[Any], epoch: int) -> None:
    """Call `set_epoch` of datasets, and of those that torch's wrappers hold (Subset, ConcatDataset, ChainDataset).

    Args:
        datasets: The datasets.
        epoch: At least 0.
    """
    waiting, seen = list(datasets), set()
    for one in waiting:
        set_epoch = getattr(one, "set_epoch", None)
        if id(one) not in seen and callable(set_epoch):
            set_epoch(epoch)
        elif id(one) not in seen and type(one).__module__.startswith("torch.utils.data"):
            held = attributes_of(one)
            parts = held.get("datasets", ())
            waiting += [held.get("dataset"), *(parts.values() if isinstance(parts, dict) else parts)]
        seen.add(id(one))


def _held(value: object) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value[:_WIDEST])
    if type(value) is dict:
        return [part for part, _ in zip(value.values(), range(_WIDEST), strict=False)]
    held = held_by_function(value)
    return list(attributes_of(value).values()) if held is None else held


def _is_leaf(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, complex, str, bytes, type, ModuleType, range))


def check_undivided(value: object, data_world_size: int, what: str) -> None:
    """Refuse a dataset or sampler that is already divided, if rows are divided over data ranks again.

    Args:
        value: A dataset or a sampler.
        data_world_size: Number of data ranks that share the rows.
        what: How to name it in the error.

    Raises:
        ValueError: It, or something in it, is a part for one rank of several.
    """
    if data_world_size == 1 or isinstance(value, (list, tuple)) or type(value) is dict:
        return
    for one in objects_in(value):
        found = _division(one)
        if found is not None:
            (parts_name, parts), (rank_name, rank) = found
            raise ValueError(
                f"{what} is divided already: its {type(one).__name__} has {parts_name}={parts} and {rank_name}={rank}, "
                f"and rows are divided over data_world_size={data_world_size} here again, so most would go to no rank. "
                "Pass it undivided (before split_dataset_by_node; a plain sampler in place of a DistributedSampler), "
                "or leave the division to it and read without a mesh of several data ranks"
            )


def _division(value: object) -> tuple[tuple[str, int], tuple[str, Any]] | None:
    kind = type(value)
    if isinstance(value, Mapping) or not any(library_of(base) in _LIBRARIES for base in kind.__mro__):
        return None
    if not hasattr(kind, "__iter__") and kind.__name__ != "DistributedConfig":
        return None  # it knows a rank for another purpose, as accelerate's state does
    own = attributes_of(value)
    for parts_name, rank_name in _DIVISIONS:
        parts = own.get(parts_name)
        if type(parts) is int and parts > 1 and rank_name in own:
            return (parts_name, parts), (rank_name, own[rank_name])
    return None
