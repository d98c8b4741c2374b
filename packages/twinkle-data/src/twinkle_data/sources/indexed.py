"""Map-style datasets of every kind behind one interface: a length, samples by index, a fingerprint."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from twinkle_data.sources.fingerprint import digest, fingerprint_of
from twinkle_data.sources.kinds import (
    by_position,
    check_column,
    is_array_of_pandas,
    is_hugging_face,
    is_plain,
    is_plain_column,
    is_rows_by_number,
    is_tensors,
    refuse_frames,
    refuse_unordered,
)


class Portion(NamedTuple):
    """The samples of a step that belong to one dataset of several.

    Attributes:
        rows: Their rows in the step.
        source: Their dataset.
        start: Index at which the dataset begins.
    """

    rows: Sequence[int]
    source: Source
    start: int


class Source(Protocol):
    """Samples by index.

    Attributes:
        at_once: Reading several samples together is better than one by one.
    """

    at_once: bool

    @property
    def fingerprint(self) -> str:
        """Digest of the contents, or of a small part of them; the same in every process; computed on first use."""

    @property
    def dataset(self) -> Any:
        """The dataset as the user gave it."""

    @property
    def plain(self) -> bool:
        """Whether reading runs no user code, so that no random numbers are drawn."""

    def __len__(self) -> int: ...

    def lengths_now(self) -> tuple[int, ...]:
        """The present lengths of the lists, columns and datasets: a list may have grown."""

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples, together where the dataset can."""

    def span(self, index: int) -> tuple[int, int]:
        """The indices [start, stop) that a replacement of a sample may have."""

    def portions(self, indices: Sequence[int]) -> Sequence[Portion] | None:
        """The samples by dataset, for a mixture; None for a single dataset."""

    def datasets(self) -> Sequence[Any]:
        """The objects whose code reads samples: the dataset, the columns of a dict, or the datasets of a mixture."""


class Rows:
    """A list, a tuple or an array of samples, or a dict of them by number.

    Args:
        rows: The list, tuple, array or dict.
    """

    plain = True
    at_once = True

    def __init__(self, rows: Sequence[Any]) -> None:
        self.dataset = rows

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the rows."""
        return digest(self.dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def lengths_now(self) -> tuple[int, ...]:
        """The present length."""
        return (len(self.dataset),)

    def read(self, index: int) -> Any:
        """Read one row."""
        return self.dataset[index]

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read rows, one by one."""
        rows = self.dataset
        return [rows[index] for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """All indices."""
        return 0, len(self)

    def portions(self, indices: Sequence[int]) -> None:
        """None: this is a single dataset."""

    def datasets(self) -> Sequence[Any]:
        """The dataset alone."""
        return (self.dataset,)


class Columns:
    """Columns of equal length; a sample is a dict of their rows.

    Args:
        columns: Arrays, tensors, lists or other objects with a length and rows by index, by name. The columns of
            libraries give values, not their wrappers.

    Raises:
        TypeError: A value is no column, such as a text or a frame.
        ValueError: The columns differ in length, or there is no column.
    """

    at_once = True

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        for name, column in columns.items():
            check_column(name, column)
        columns = {name: by_position(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of a dataset have one length, got {lengths or 'no column'}")
        self.dataset = columns
        self._length = next(iter(lengths.values()))
        self.plain = all(map(is_plain_column, columns.values()))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the columns by name; of a column that runs the user's code, what `fingerprint_of` sees."""
        return digest(
            {
                name: column if is_plain(column) or is_plain_column(column) else fingerprint_of(column)
                for name, column in self.dataset.items()
            }
        )

    def __len__(self) -> int:
        return self._length

    def lengths_now(self) -> tuple[int, ...]:
        """The present length of each column."""
        return tuple(map(len, self.dataset.values()))

    def read(self, index: int) -> dict[str, Any]:
        """Read one row of every column."""
        return {name: column[index] for name, column in self.dataset.items()}

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read rows, one by one."""
        return [self.read(index) for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """All indices."""
        return 0, len(self)

    def portions(self, indices: Sequence[int]) -> None:
        """None: this is a single dataset."""

    def datasets(self) -> Sequence[Any]:
        """The columns."""
        return tuple(self.dataset.values())


class Objects:
    """Any object with `__len__` and `__getitem__`: torch and Hugging Face datasets, and the user's own.

    Args:
        dataset: The object. Where it has `__getitems__`, that reads several samples at once, as in torch.
        factory: The callable that built it; where it can be pickled, it builds the dataset again in another process.
    """

    def __init__(self, dataset: Any, factory: Callable[[], object] | None = None) -> None:
        self.dataset = dataset
        self.factory = factory
        self.at_once = callable(getattr(dataset, "__getitems__", None))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what the object holds, or of its own attribute `fingerprint`."""
        if is_hugging_face(self.dataset):
            return digest(self.dataset)
        return fingerprint_of(self.dataset, self.factory)

    def __getstate__(self) -> dict[str, Any]:
        if self.factory is not None and _pickles(self.factory):
            return {**self.__dict__, "dataset": None}
        return {**self.__dict__, "factory": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.factory is not None:
            self.dataset = self.factory()

    def __len__(self) -> int:
        return len(self.dataset)

    def lengths_now(self) -> tuple[int, ...]:
        """The present length."""
        return (len(self.dataset),)

    @property
    def plain(self) -> bool:
        """Whether the dataset's library runs no user code for a sample."""
        return is_tensors(self.dataset) or (is_hugging_face(self.dataset) and self.dataset.format["type"] != "custom")

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""
        # The dataset's own method: one more call would cost as much as a cheap sample.
        return self._one if self.at_once else self.dataset.__getitem__

    def _one(self, index: int) -> Any:
        return self.read_many([index])[0]

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples, together where the dataset can.

        Raises:
            TypeError: Its `__getitems__` gives columns.
            ValueError: It gives another number of samples.
        """
        if self.at_once:
            found = self.dataset.__getitems__(list(indices))
            if isinstance(found, Mapping):
                raise TypeError(
                    f"__getitems__ of {type(self.dataset).__name__} gives a {type(found).__name__} of columns; return "
                    "a list with a sample for each index, or leave it out"
                )
            rows = list(found)
            if len(rows) != len(indices):
                raise ValueError(
                    f"__getitems__ of {type(self.dataset).__name__} gives {len(rows)} samples for {len(indices)} "
                    "indices; return one for each (on_error= is for samples that cannot be read)"
                )
            return rows
        dataset = self.dataset
        return [dataset[index] for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """All indices."""
        return 0, len(self)

    def portions(self, indices: Sequence[int]) -> None:
        """None: this is a single dataset."""

    def datasets(self) -> Sequence[Any]:
        """The dataset alone."""
        return (self.dataset,)


def build(dataset: object) -> tuple[object, Callable[[], object] | None]:
    """The dataset and its factory; a callable without `__getitem__` and `__iter__` is a factory."""
    if isinstance(dataset, type) or (callable(dataset) and not _is_dataset(dataset)):
        return dataset(), dataset
    return dataset, None


def open_source(dataset: object) -> Source:
    """The source of a dataset.

    Raises:
        TypeError: It cannot be read by index.
    """
    dataset, factory = build(dataset)
    dataset = by_position(dataset)
    refuse_frames(dataset)
    refuse_unordered(dataset, "the dataset")
    if isinstance(dataset, Mapping):
        return Rows(dataset) if is_rows_by_number(dataset) else Columns(dataset)  # type: ignore[arg-type]  # by number
    if isinstance(dataset, (str, bytes)):
        raise TypeError(f"a dataset is not a {type(dataset).__name__}; pass a list of samples")
    if is_plain(dataset) or is_array_of_pandas(dataset):
        return Rows(dataset)  # type: ignore[arg-type]  # arrays have len() and [] without being Sequences
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return Objects(dataset, factory)
    raise TypeError(
        f"{type(dataset).__name__} has not both __len__ and __getitem__; a dataset is a list, a dict of columns, "
        "an object with these two, an iterable that starts anew each time, or a callable that builds one"
    )


def _is_dataset(value: object) -> bool:
    return hasattr(value, "__getitem__") or hasattr(value, "__iter__")


def _pickles(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # a lambda or a closure: the built dataset is sent instead
        return False
    return True
