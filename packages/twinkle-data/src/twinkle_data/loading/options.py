"""The loader's options for loader processes and for packing, as groups or as keywords."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Required, SupportsIndex, TypedDict, TypeVar

from twinkle_data.loading.loader_processes.processes import ProcessOptions
from twinkle_data.option_checks import check_kind, true_or_false
from twinkle_data.order.packing import Packing
from twinkle_mesh import instead_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from multiprocessing.context import BaseContext

    from twinkle_data.order.tails import Tail
    from twinkle_data.reading.retries import OnError
    from twinkle_mesh import DeviceMesh

T_co = TypeVar("T_co", covariant=True)


class _ProcessKeywords(TypedDict, total=False):
    """The fields of `ProcessOptions` but `num_workers`."""

    prefetch_factor: int
    pin_memory: bool
    persistent_workers: bool
    multiprocessing_context: str | BaseContext | None
    worker_init_fn: Callable[[int], None] | None
    timeout_s: float
    restarts: int


class LoaderOptions(_ProcessKeywords, total=False):
    """Keywords of `DataLoader` that are fields of `ProcessOptions` and of `Packing`, which document them.

    `persistent_workers` is `ProcessOptions.persistent`, which does nothing without loader processes.
    """

    lengths: Sequence[int] | None
    max_tokens: int | None
    micro_batches: int


class _Keywords(_ProcessKeywords, total=False):
    """The keywords of all overloads of `DataLoader`; the class documents them."""

    device_mesh: DeviceMesh | None
    remote_group: str | None
    shuffle: bool
    seed: SupportsIndex
    replicate: bool
    tail: Tail
    num_workers: int
    on_error: OnError
    retries: int
    backoff_s: float
    max_bad: int
    sample_seeds: bool | Collection[str]
    fingerprint: str | None
    progress: bool
    processes: ProcessOptions | None


class RowOptions(_Keywords, total=False):
    """The keywords of a loader whose batches are rows."""

    packing: None
    lengths: None
    max_tokens: None


class PackingOptions(_Keywords, total=False):
    """The keywords of a loader whose batches are packs."""

    packing: Required[Packing]


class PackingKeywords(_Keywords, total=False):
    """The same, with the fields of `Packing`."""

    lengths: Required[Sequence[int]]
    max_tokens: Required[int]
    micro_batches: int


class RowsByIndex(Protocol[T_co]):
    """A dataset with a length and samples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T_co: ...


_PACKING = ("lengths", "max_tokens", "micro_batches")


_NAMES = (
    "dataset",
    "batch_size",
    "collate_fn",
    "num_workers",
    "device_mesh",
    "remote_group",
    *LoaderOptions.__annotations__,
)
"""What a user may mean by an unknown name."""


def grouped(
    num_workers: int, processes: ProcessOptions | None, packing: Packing | None, options: Mapping[str, Any]
) -> tuple[ProcessOptions, Packing | None]:
    """Both groups of options; a user gives each as one object or as keywords.

    Raises:
        TypeError: There is no such keyword, or a group is given in both ways.
        ValueError: An option is not valid.
    """
    unknown = sorted(options.keys() - LoaderOptions.__annotations__.keys())
    if unknown:
        raise TypeError(
            f"DataLoader has no option {', '.join(unknown)}: {instead_of(unknown[0], _NAMES)}; with those of its "
            f"signature it takes {', '.join(LoaderOptions.__annotations__)}"
        )
    check_kind("processes", processes, ProcessOptions)
    check_kind("packing", packing, Packing)
    own = {name: value for name, value in options.items() if name not in _PACKING}
    packs = {name: value for name, value in options.items() if name in _PACKING and value is not None}
    if processes is not None and (own or num_workers):
        names = [*(["num_workers"] if num_workers else []), *own]
        raise TypeError(f"processes= and {', '.join(names)} are both given: give them in ProcessOptions(...)")
    if packing is not None and packs:
        raise TypeError(f"packing= and {', '.join(packs)} are both given: give them in Packing(...)")
    if processes is None:
        persistent = true_or_false("persistent_workers", own.pop("persistent_workers", False))
        own["persistent"] = persistent and num_workers > 0
        processes = ProcessOptions(num_workers, **own)
    return processes, packing if packing is not None else _packing(packs)


def _packing(given: Mapping[str, Any]) -> Packing | None:
    if ("lengths" in given) != ("max_tokens" in given):
        raise ValueError("packing needs both: lengths=, the tokens of each sample, and max_tokens=")
    if "lengths" in given:
        return Packing(**given)
    if given.get("micro_batches", 1) != 1:
        raise ValueError(
            f"micro_batches={given['micro_batches']} belongs to packing: give lengths= and max_tokens= too"
        )
    return None
