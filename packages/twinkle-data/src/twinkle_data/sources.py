"""The sources of a loader: a dataset is what has `len()` and `[]`; an iterable without them is a stream.

A dict holds columns, a `Mixture` several datasets, and a callable builds a dataset in the process that reads. Values
that would give something else than rows by position are refused here, with what to use.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from hashlib import blake2b
from itertools import accumulate, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from twinkle_data.order import DatasetOrder, MixedOrder

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.order import Order

_TABLES = ("itertuples", "to_dicts", "to_pylist")  # methods of a frame of pandas or polars, and of Arrow's values
_ROWS = 16  # of a fingerprint
_PARTS = 1 << 12  # of a long row, from its start


class Columns(Sequence[dict[str, Any]]):
    """Columns of one length; a sample is a dict of one row of each."""

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        self.columns = {name: by_position(column, f"column {name!r}") for name, column in columns.items()}
        for name, column in self.columns.items():
            if not isinstance(name, str) or not hasattr(column, "__getitem__") or isinstance(column, Mapping):
                raise TypeError(
                    f"a dict holds columns with texts as names, got {name!r} with a {type(column).__name__}: use lists "
                    "or arrays for columns, and list(rows.values()) for rows under numbers"
                )
        lengths = {name: len(column) for name, column in self.columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of a dataset have one length, got {lengths}")

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: Any) -> Any:
        return {name: column[index] for name, column in self.columns.items()}


class Mixture(Sequence[Any]):
    """Datasets mixed by weight; pass it as the dataset of a loader.

    Each dataset has its exact share of an epoch, and all its rows come once before one of them comes again. An index
    of a mixture counts through its datasets in the order in which they are given.

    Args:
        datasets: Datasets by name, each with `len()` and `[]`, and none empty.
        weights: A weight above 0 for each name; None takes the lengths. An epoch has as many samples as all datasets
            together.

    Raises:
        TypeError: A dataset is a stream.
        ValueError: A dataset is empty, or there is not one weight above 0 for each.
    """

    def __init__(self, datasets: Mapping[str, Any], weights: Mapping[str, float] | None = None) -> None:
        self.datasets = {name: opened(dataset) for name, dataset in datasets.items()}
        for name, dataset in self.datasets.items():
            if is_stream(dataset):
                raise TypeError(f"dataset {name!r} of a mixture is a stream; a mixture needs samples by index")
        self.lengths = [len(dataset) for dataset in self.datasets.values()]
        given = dict(zip(self.datasets, self.lengths, strict=True)) if weights is None else dict(weights)
        weighed = given.keys() == self.datasets.keys() and all(0 < weight < inf for weight in given.values())
        if not (given and weighed and all(self.lengths)):
            raise ValueError(
                f"a mixture has datasets that are not empty, and a finite weight above 0 for each of "
                f"{list(self.datasets)}; got lengths {self.lengths} and weights {given}"
            )
        total = [*accumulate(given[name] for name in self.datasets)]
        edges = [0, *(round(sum(self.lengths) * part / total[-1]) for part in total)]
        self.shares = [after - before for before, after in pairwise(edges)]
        self._starts = [0, *accumulate(self.lengths)]

    def locate(self, index: int) -> tuple[str, int]:
        """The name of the dataset that an index of `Batch.indices` belongs to, and the index in that dataset."""
        number = bisect_right(self._starts, index) - 1
        if not 0 <= number < len(self.datasets):
            raise IndexError(f"index={index} is outside [0, {len(self) - 1}]")
        return list(self.datasets)[number], index - self._starts[number]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: Any) -> Any:
        name, own = self.locate(index)
        return self.datasets[name][own]


class FactoryIterable:
    """An iterable that calls a function for each pass, such as a generator function."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def by_position(rows: Any, what: str) -> Any:
    """Rows that are read by position; a pandas series gives its array, which knows no labels.

    Refused are sets, texts, frames, and Arrow arrays, whose values equal nothing.
    """
    kind = type(rows).__name__
    if isinstance(rows, (Set, str, bytes)) and not hasattr(rows, "mapping"):
        why = "has no order, which differs by process; use sorted(...)" if isinstance(rows, Set) else "holds letters"
        raise TypeError(f"{what} is a {kind}, which {why}; a list has a value for each row")
    if kind.endswith("DatasetDict") or any(hasattr(rows, name) for name in _TABLES):
        raise TypeError(
            f"{what} is a {kind}, which does not give values by row: use dict(frame) or frame.to_dict('records') of "
            "pandas, frame.to_dicts() of polars, .to_pylist() of Arrow, or one split of a DatasetDict"
        )
    return rows.array if hasattr(rows, "iloc") else rows


def opened(dataset: Any) -> Any:
    """A dataset with `len()` and `[]`, or a stream: builds it where it is a callable, and makes columns of a dict.

    Refused is what is neither, an iterator, which can be read only once, and what is divided over ranks already.
    """
    if isinstance(dataset, type) or (callable(dataset) and not {"__iter__", "__len__"} & set(dir(dataset))):
        make, dataset = dataset, dataset()
        if isinstance(dataset, Iterator):
            return FactoryIterable(make)
    dataset = by_position(dataset, "the dataset")
    if isinstance(dataset, Mapping):
        dataset = Columns(dataset)
    if not ((hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or hasattr(dataset, "__iter__")):
        raise TypeError(f"a {type(dataset).__name__} has neither len() with samples by index, nor __iter__")
    if isinstance(dataset, Iterator):
        raise TypeError(
            f"a {type(dataset).__name__} can be read only once: pass an object whose __iter__ begins anew, or the "
            "function that makes it"
        )
    check_undivided(dataset)
    return dataset


def is_stream(dataset: Any) -> bool:
    """Whether it is read from its start only: an iterable without samples by index, or torch's IterableDataset."""
    iterable = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    return iterable or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"))


def check_undivided(dataset: Any) -> None:
    """Refuse what is divided over ranks already: a DistributedSampler, or what `split_dataset_by_node` returned."""
    for part in (dataset, getattr(dataset, "sampler", None)):
        node = getattr(part, "_distributed", None)
        if (getattr(node, "world_size", 1) or 1) > 1 or (getattr(part, "num_replicas", 1) or 1) > 1:
            raise ValueError(
                f"{type(dataset).__name__} is divided already, by DistributedSampler or split_dataset_by_node, and the "
                "loader would divide its part again: pass it undivided, or replicate=True to the loader"
            )


def order_of(dataset: Any, seed: int, *, shuffle: bool) -> Order:
    """The order of a dataset with samples by index."""
    if isinstance(dataset, Mixture):
        return MixedOrder(dataset.lengths, dataset.shares, seed, shuffle=shuffle)
    return DatasetOrder(len(dataset), seed, shuffle=shuffle)


def parts_of(dataset: Any) -> list[Any]:
    """The datasets inside a mixture, or inside one of torch's wrappers (Subset, ConcatDataset, StackDataset)."""
    if isinstance(dataset, Mixture):
        return list(dataset.datasets.values())
    if type(dataset).__module__.partition(".")[0] != "torch":
        return []
    if hasattr(dataset, "dataset"):
        return [dataset.dataset]
    found = getattr(dataset, "datasets", ())
    return list(found.values() if isinstance(found, Mapping) else found)


def is_plain(dataset: Any) -> bool:
    """Whether reading a row runs no code of the program's: lists, arrays, columns, Hugging Face without a transform."""
    kind = type(dataset)
    library, parts = kind.__module__.partition(".")[0], parts_of(dataset)
    if isinstance(dataset, Columns):
        return all(map(is_plain, dataset.columns.values()))
    if parts:
        return all(map(is_plain, parts))
    if library == "datasets" and hasattr(dataset, "format"):
        return bool(dataset.format["type"] != "custom")
    return kind in (list, tuple, range) or library in ("numpy", "torch", "pandas", "polars", "datasets")


def set_epoch(dataset: Any, epoch: int) -> None:
    """Call `set_epoch` of a dataset, and of those inside of it, where they have one."""
    for part in (dataset, *parts_of(dataset)):
        if part is not dataset:
            set_epoch(part, epoch)
        elif callable(getattr(part, "set_epoch", None)):
            part.set_epoch(epoch)


def lengths_of(dataset: Any) -> Any:
    """The tokens of each sample: the attribute `lengths`, else of a column `length`, else those of `input_ids`."""
    own = getattr(dataset, "lengths", None)
    if own is not None and not isinstance(dataset, Mixture):
        return own
    if isinstance(dataset, Mixture):
        return np.concatenate([np.asarray(lengths_of(part)) for part in dataset.datasets.values()])
    columns = dataset.columns if isinstance(dataset, Columns) else None
    if columns is None and hasattr(dataset, "column_names"):
        columns = {name: dataset[name] for name in dataset.column_names}
    if columns is not None and "length" in columns:
        return columns["length"]
    if columns is not None and "input_ids" in columns:
        return [len(ids) for ids in columns["input_ids"]]
    if type(dataset) in (list, tuple) and all(isinstance(row, Mapping) and "input_ids" in row for row in dataset):
        return [len(row["input_ids"]) for row in dataset]
    raise TypeError(
        f"max_tokens= needs the tokens of each sample, and a {type(dataset).__name__} shows none: give it an attribute "
        '`lengths` (a list or array), a column "length", or rows with "input_ids"'
    )


def fingerprint_of(dataset: Any) -> str:
    """The fingerprint of a dataset or stream, which shows that a saved position, or another rank, has another one.

    It is the attribute `fingerprint`, else a digest of the type, the length and some rows where reading these runs no
    code of the program's.
    """
    if isinstance(own := getattr(dataset, "fingerprint", None), str):
        return own
    name = type(dataset).__name__
    if is_stream(dataset):
        return digest(name)
    said = [name, str(len(dataset))]
    if isinstance(dataset, Mixture):
        said += [*dataset.datasets, str(dataset.shares)]
    if not isinstance(dataset, Columns) and (parts := parts_of(dataset)):
        indices = dataset.indices if name == "Subset" else ()
        return digest(*said, *map(fingerprint_of, parts), *(str(int(indices[at])) for at in _spread(len(indices))))
    if is_plain(dataset):
        said += [text_of(dataset[at]) for at in _spread(len(dataset))]
    return digest(*said)


def _spread(length: int) -> list[int]:
    """Some positions, the first and the last among them."""
    return sorted({(length - 1) * row // (_ROWS - 1) for row in range(_ROWS)}) if length else []


def digest(*texts: str) -> str:
    """A short digest of texts."""
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def text_of(value: Any, *, floats: bool = True) -> str:
    """Plain data as a text, of anything else its type; without `floats`, which differ a little between processors."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return repr(value) if floats or not isinstance(value, float) else "float"
    if isinstance(value, Mapping):
        return repr({str(key): text_of(part, floats=floats) for key, part in value.items()})
    if isinstance(value, (list, tuple)):
        return repr([len(value), *(text_of(part, floats=floats) for part in value[:_PARTS])])
    dtype, shape = str(getattr(value, "dtype", "")), tuple(getattr(value, "shape", ()))
    parts = ""
    if dtype and (floats or not ("float" in dtype or "complex" in dtype)):
        with suppress(AttributeError, TypeError, ValueError, RuntimeError):  # of a sparse tensor, or a meta device
            parts = repr(value.reshape(-1)[:_PARTS].tolist())
    return f"{type(value).__name__} {dtype} {shape} {parts}"
