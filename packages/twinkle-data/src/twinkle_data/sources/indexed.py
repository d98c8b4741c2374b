"""Map-style datasets of every kind behind one interface: a length, samples by index, a fingerprint."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from twinkle_data.sources.fingerprint import digest

_PROBES = 32
_INSTEAD = {
    ("pandas", "DataFrame"): 'gives columns; dict(frame), or frame.to_dict("records")',
    ("pyarrow", "Table"): "gives columns; table.to_pylist(), or datasets.Dataset(table)",
    ("pyarrow", "RecordBatch"): "gives columns; batch.to_pylist()",
    ("datasets", "DatasetDict"): 'holds splits; one of them, such as dataset["train"]',
    ("datasets", "IterableDatasetDict"): 'holds splits; one of them, such as dataset["train"]',
}


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
        at_once: It is better to read several samples together than one by one.
        fingerprint: Digest of the contents, or of a cheap part of them; the same in every process.
    """

    at_once: bool
    fingerprint: str

    @property
    def dataset(self) -> Any:
        """The dataset as the user gave it."""

    @property
    def plain(self) -> bool:
        """Whether reading runs no user code, so that nothing draws."""

    def __len__(self) -> int: ...

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples, together where the dataset can."""

    def span(self, index: int) -> tuple[int, int]:
        """The indices [start, stop) that a replacement of a sample may have."""

    def portions(self, indices: Sequence[int]) -> Sequence[Portion] | None:
        """The samples by dataset, for a mixture; None for a single dataset."""


class Rows:
    """A list, a tuple or an array of samples.

    Args:
        rows: The list, tuple or array.
    """

    plain = True
    at_once = True

    def __init__(self, rows: Sequence[Any]) -> None:
        self.dataset = rows
        self.fingerprint = digest([rows[index] for index in _probes(len(rows))])

    def __len__(self) -> int:
        return len(self.dataset)

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


class Columns:
    """Columns of equal length; a sample is a dict of their rows.

    Args:
        columns: Arrays, tensors, lists or other objects with a length and rows by index, by name. Their fingerprint is
            a digest of some rows; for other objects it is that of `Objects`, since reading a row runs their code.
    """

    at_once = True

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        columns = {name: _by_position(column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the columns of a dataset have one length, got {lengths or 'no column'}")
        self.dataset = columns
        self._length = next(iter(lengths.values()))
        still = {name: column for name, column in columns.items() if _is_plain_column(column)}
        self.plain = len(still) == len(columns)
        rows = [{name: column[index] for name, column in still.items()} for index in _probes(self._length)]
        others = [_name_of(column) for name, column in columns.items() if name not in still]
        self.fingerprint = digest([list(columns), rows, *others])

    def __len__(self) -> int:
        return self._length

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


class Objects:
    """Any object with `__len__` and `__getitem__`: torch and Hugging Face datasets, and the user's own.

    Args:
        dataset: The object. Where it has `__getitems__`, that reads several samples at once, as in torch. Its
            fingerprint is its attribute `fingerprint` or `_fingerprint` where it has one, else the name of its type.
        factory: The callable that built it; where it can be pickled, it builds the dataset again in another process.
    """

    def __init__(self, dataset: Any, factory: Callable[[], object] | None = None) -> None:
        self.dataset = dataset
        self.factory = factory
        self.at_once = callable(getattr(dataset, "__getitems__", None))
        self.fingerprint = digest(_name_of(dataset))

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

    @property
    def plain(self) -> bool:
        """Whether the dataset's library runs no user code for a sample."""
        return _is_tensors(self.dataset) or (_is_hugging_face(self.dataset) and self.dataset.format["type"] != "custom")

    @property
    def read(self) -> Callable[[int], Any]:
        """The function that reads one sample."""
        # The dataset's own method: one more call would cost as much as a cheap sample.
        return self._one if self.at_once else self.dataset.__getitem__

    def _one(self, index: int) -> Any:
        return self.dataset.__getitems__([index])[0]

    def read_many(self, indices: Sequence[int]) -> list[Any]:
        """Read several samples, together where the dataset can."""
        if self.at_once:
            return list(self.dataset.__getitems__(list(indices)))
        dataset = self.dataset
        return [dataset[index] for index in indices]

    def span(self, index: int) -> tuple[int, int]:
        """All indices."""
        return 0, len(self)

    def portions(self, indices: Sequence[int]) -> None:
        """None: this is a single dataset."""


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
    dataset = _by_position(dataset)
    advice = _INSTEAD.get((_library(dataset), type(dataset).__name__))
    if advice is not None:
        raise TypeError(f"a loader reads rows by position, and {type(dataset).__name__} {advice} would do")
    if isinstance(dataset, Mapping):
        return Columns(dataset)
    if isinstance(dataset, (str, bytes)):
        raise TypeError(f"a dataset is not a {type(dataset).__name__}; pass a list of samples")
    if _is_plain(dataset) or _is_array_of_pandas(dataset):
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


def _by_position(rows: Any) -> Any:
    """A series of pandas without its labels: by index it would give the row of that label."""
    return rows.array if _library(rows) == "pandas" and type(rows).__name__ == "Series" else rows


def _is_array_of_pandas(value: object) -> bool:
    return _library(value) == "pandas" and hasattr(value, "dtype")


def _is_plain(value: object) -> bool:
    """Tell whether reading a row of it runs no code but Python's, numpy's and torch's."""
    return type(value) in (list, tuple, range) or _is_array(value)


def _is_plain_column(column: object) -> bool:
    if type(column).__module__ == "datasets.arrow_dataset" and type(column).__name__ == "Column":
        source: Any = column
        while not _is_hugging_face(source):
            if not hasattr(source, "source"):
                return False
            source = source.source
        return bool(source.format["type"] != "custom")
    return _is_plain(column) or _library(column) in ("pandas", "polars", "pyarrow")


def _name_of(dataset: object) -> str:
    own = getattr(dataset, "fingerprint", None) or getattr(dataset, "_fingerprint", None)
    return own if isinstance(own, str) else type(dataset).__qualname__


def _is_array(dataset: object) -> bool:
    return _library(dataset) in ("numpy", "torch") and hasattr(dataset, "dtype")


def _library(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _is_tensors(dataset: object) -> bool:
    return type(dataset).__module__ == "torch.utils.data.dataset" and type(dataset).__name__ == "TensorDataset"


def _is_hugging_face(dataset: object) -> bool:
    return type(dataset).__module__ == "datasets.arrow_dataset" and type(dataset).__name__ == "Dataset"


def _probes(length: int) -> list[int]:
    if length <= _PROBES:
        return list(range(length))
    return [number * (length - 1) // (_PROBES - 1) for number in range(_PROBES)]
