"""The parts of values of each library that a fingerprint reads: a few bytes, rows or elements, evenly spread."""

from __future__ import annotations

import functools
import os
import stat
import sys
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.sources.parts import library_of

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT: Final = 1 << 15
_BLOCK: Final = 64
_RUN: Final = 8
_WORDS: Final = 512
_DIGITS: Final = 2000
_SIDE: Final = 64
_VALUES: Final = frozenset(
    ("datetime", "decimal", "fractions", "uuid", "pathlib", "ipaddress", "zoneinfo", "re", "_pydatetime")
)
# Collections and buffers of Python's are looked into; files, locks, threads and loggers are not.
_LOOKED_INTO: Final = frozenset(("collections", "types", "dataclasses", "enum", "array", "functools", "builtins"))
_SETTINGS: Final = frozenset(
    ("_formatting", "formatting", "batch_size", "decoding_pool", "generator", "num_workers", "epoch", "rank")
)
_OPAQUE: Final = frozenset(("tokenizers", "logging", "tqdm", "fsspec", "huggingface_hub", "ray"))


def spread(length: int, most: int) -> range | list[int]:
    """At most so many positions of [0, length), evenly spread, with the first and the last."""
    if length <= most:
        return range(length)
    return [number * (length - 1) // (most - 1) for number in range(most)]


def runs(length: int, most: int) -> range | list[int]:
    """At most so many positions of [0, length), in short runs that lie evenly spread, with the first and the last."""
    if length <= most or most < 4 * _RUN:
        return spread(length, most)
    return [start + step for start in spread(length - _RUN + 1, most // _RUN) for step in range(_RUN)]


def blocks(size: int, most: int = LIMIT >> 3) -> np.ndarray[Any, np.dtype[np.int64]]:
    """At most so many positions of [0, size), in blocks that lie evenly spread."""
    if size <= most:
        return np.arange(size)
    width = min(_BLOCK, most)
    starts = np.array(spread(size - width + 1, max(most // width // 2, 2)), dtype=np.int64)
    return (starts[:, None] + np.arange(width)).ravel()


def text_of(value: object) -> bytes:
    """A number or a text as bytes; of a long text, its length and spread parts."""
    if not isinstance(value, str) or len(value) <= LIMIT:
        kind = next(base for base in (bool, int, float, complex, str, type(None)) if isinstance(value, base))
        if kind is int and abs(value) >> _DIGITS:  # type: ignore[arg-type]  # it is an int; Python refuses its digits
            return hex(value).encode()  # type: ignore[arg-type]  # the same
        make: Any = kind
        plain = value if type(value) is kind or value is None else make(value)
        return repr(plain).encode()
    parts = [value[start : start + _BLOCK] for start in spread(len(value) - _BLOCK + 1, LIMIT // _BLOCK // 2)]
    return f"{len(value)}:{''.join(parts)!r}".encode()


def size_and_type(value: object) -> bytes:
    """The name of a type, with the shape or length of a value of a library's or of Python's."""
    kind = type(value)
    size: object = ""
    try:
        if library_of(kind) in ("torch", "numpy"):
            size = tuple(value.shape)  # type: ignore[attr-defined]  # an array or a tensor, or it is an error
        elif isinstance(value, (list, tuple, dict, set, frozenset)):
            size = len(value)
    except Exception:  # it has none
        size = ""
    return f"{kind.__qualname__}{size}".encode()


def bytes_of_array(value: np.ndarray[Any, Any]) -> bytes:
    """The bytes of an array, little-endian; of a large one, those of spread blocks of elements."""
    if value.nbytes > LIMIT:
        # By index: flattening would copy an array that lies otherwise in memory, and read a mapped file.
        value = value[np.unravel_index(blocks(value.size), value.shape)]
    return value.astype(value.dtype.newbyteorder("<"), copy=False).tobytes()


def _bytes_of_buffer(value: Any) -> bytes:
    view = memoryview(value).cast("B")
    if view.nbytes <= LIMIT:
        return view.tobytes()
    starts = spread(view.nbytes - _BLOCK + 1, LIMIT // _BLOCK // 2)
    return f"{view.nbytes}:".encode() + b"".join(bytes(view[start : start + _BLOCK]) for start in starts)


def is_tensor(value: object) -> bool:
    """Whether it is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def parts_of_tensor(value: Any) -> Iterator[Any]:
    """The dtype, shape and numbers of a tensor of any layout and device."""
    import torch

    tensor = value.detach()
    yield str(tensor.dtype)
    if tensor.is_nested:  # its shape has numbers of its own
        yield list(tensor.unbind())
        return
    yield tuple(tensor.shape)
    if tensor.is_meta:
        return
    if hasattr(tensor, "to_local"):  # a part of a distributed tensor
        yield from parts_of_tensor(tensor.to_local())
    elif tensor.is_quantized:
        yield tensor.dequantize()
    elif tensor.layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        yield [tensor.indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        yield [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        yield [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    elif tensor.layout is not torch.strided:
        yield tensor.to_dense()
    elif tensor.numel() * tensor.element_size() > 16 * LIMIT and not tensor.is_contiguous():
        at = torch.from_numpy(blocks(tensor.numel(), 1024)).to(tensor.device)
        yield _bytes_of_dense(tensor[torch.unravel_index(at, tensor.shape)])
    else:
        yield _bytes_of_dense(tensor)


def _bytes_of_dense(tensor: Any) -> bytes:
    import torch

    words = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if words.numel() > LIMIT:
        size, number = words.numel(), LIMIT // _WORDS
        evenly = words[: size // number * number].view(number, -1)[:, :_WORDS].reshape(-1)
        words = torch.cat([evenly, words[-_WORDS:]])
    return bytes(words.cpu().numpy().tobytes())


def plain_of(value: Any) -> tuple[str, Any] | None:
    """A value of a library's small types as a name and a plain value; None for other types."""
    kind, library = type(value), library_of(type(value))
    if isinstance(value, PurePath):
        return "path", value.as_posix()
    if library in _VALUES:
        return kind.__name__, repr(value)
    if isinstance(value, range):
        return "range", (value.start, value.stop, value.step)
    if isinstance(value, slice):
        return "slice", (value.start, value.stop, value.step)
    if hasattr(kind, "__members__") and hasattr(kind, "_member_map_"):
        return f"enum {kind.__qualname__}", value.name
    if isinstance(value, (bytes, bytearray, memoryview)) or library in ("array", "mmap"):
        return "buffer", _bytes_of_buffer(value)
    if library == "pyarrow" and hasattr(value, "as_py"):
        return "arrow", _of_arrow_scalar(value, LIMIT)
    if library == "pandas" and not hasattr(value, "take"):
        return "pandas", repr(value)
    if library == "PIL" and hasattr(value, "mode"):
        return "image", (value.mode, value.size, _pixels_of(value))
    return None


def _pixels_of(image: Any) -> Any:
    """The file of an image that was opened from one, so that it is not decoded; else some of its pixels."""
    path = getattr(image, "filename", None)
    if isinstance(path, str) and is_file(path):
        return contents_of_place(path)
    return np.asarray(image.resize((min(image.width, _SIDE), min(image.height, _SIDE)), 0))  # 0: the nearest pixel


def columns_of(value: Any, rows: int, share: int) -> dict[str, list[Any]] | None:
    """Some rows of a column, series, frame or table, by name of its columns; None for other types."""
    library, names = library_of(type(value)), {kind.__name__ for kind in type(value).__mro__}
    many = min(8 * rows, max(share, rows // 8))
    if library == "pyarrow" and names & {"Table", "RecordBatch"}:
        own = [_of_arrow(column, rows, share // rows) for column in value.columns]
        return {f"{number} {name}": own[number] for number, name in enumerate(value.schema.names)}
    if library == "pyarrow" and names & {"Array", "ChunkedArray"}:
        return {"": _of_arrow(value, many, share // rows)}
    if library == "pandas" or (names & {"Series", "DataFrame"} and hasattr(value, "iloc")):
        at = list(spread(len(value), rows if hasattr(value, "columns") else many))
        if hasattr(value, "columns"):
            few = value.iloc[at]
            return {f"{number} {name}": few.iloc[:, number].tolist() for number, name in enumerate(few.columns)}
        return {"": list(value.take(at))}
    if library == "datasets" and names & {"Column"} and is_hugging_face(getattr(value, "source", None)):
        return hugging_face_rows(value.source.select_columns([value.column_name]), rows, share)
    if library == "polars" and names & {"Series"}:
        return {"": _of_polars(value, many)}
    if library == "polars" and names & {"DataFrame"}:
        return {name: _of_polars(value.get_column(name), rows) for name in value.columns}
    return None


def _of_polars(series: Any, rows: int) -> list[Any]:
    return [series[index] for index in spread(len(series), rows)]


def _of_arrow(column: Any, rows: int, share: int) -> list[Any]:
    import pyarrow

    if pyarrow.types.is_primitive(column.type):
        few: list[Any] = column.take(pyarrow.array(list(runs(len(column), rows)), pyarrow.int64())).to_pylist()
        return few
    return [_of_arrow_scalar(column[index], share) for index in spread(len(column), rows)]


def _of_arrow_scalar(scalar: Any, share: int) -> Any:
    """A value of Arrow; of a list, its length and some elements, without a copy of the others."""
    name = type(scalar).__name__
    if not scalar.is_valid:
        return None
    if name.endswith(("ListScalar", "ListViewScalar")):
        rows = max(share, _RUN)
        return [len(scalar.values), *_of_arrow(scalar.values, rows, share // rows)]
    if name == "StructScalar":
        return {key: _of_arrow_scalar(part, share // len(scalar)) for key, part in scalar.items()}
    if name == "ExtensionScalar":
        return _of_arrow_scalar(scalar.value, share)
    if hasattr(scalar, "as_buffer") and scalar.as_buffer() is not None:
        return _bytes_of_buffer(scalar.as_buffer())
    return scalar.as_py()


def is_hugging_face(value: object) -> bool:
    """Whether it is a map-style dataset of Hugging Face's, or of a class derived from it."""
    return any(
        kind.__module__ == "datasets.arrow_dataset" and kind.__name__ == "Dataset" for kind in type(value).__mro__
    )


def hugging_face_rows(dataset: Any, rows: int, share: int) -> dict[str, list[Any]]:
    """Some rows of a Hugging Face dataset as they are stored, whatever its format or transform."""
    stored = dataset.with_format("arrow")
    found: dict[str, list[Any]] = {name: [] for name in dataset.column_names}
    each = share // max(min(len(dataset), rows) * len(found), 1)
    for index in spread(len(dataset), rows):
        row = stored[index : index + 1]
        for name in found:
            found[name].append(_of_arrow_scalar(row.column(name)[0], each))
    return found


def is_place(value: object) -> bool:
    """Whether it is a path, or a text that looks like one."""
    if isinstance(value, PurePath):
        return True
    if not isinstance(value, str) or not 0 < len(value) < 1024 or "\n" in value or "\0" in value:
        return False
    return (("/" in value or os.sep in value) and not any(map(str.isspace, value))) or is_file(value)


def is_file(path: str) -> bool:
    """Whether a text names a file here."""
    if not 0 < len(path) < 1024 or "\n" in path or "\0" in path:
        return False
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def contents_of_place(path: str | PurePath) -> bytes:
    """The size and some bytes of a file; of another path, its last part: folders differ from host to host."""
    text = str(path)
    if not is_file(text):
        return f"name {PurePath(text).name}".encode()
    with open(text, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= LIMIT:
            return b"file " + file.read()
        parts = [f"file {size}:".encode()]
        for start in spread(size - 1023, LIMIT >> 10):
            file.seek(start)
            parts.append(file.read(1024))
    return b"".join(parts)


def is_opaque(kind: type) -> bool:
    """Whether objects of a class count by its name: files, locks and loggers, models and tokenizers."""
    library = library_of(kind)
    if any(
        base.__module__.startswith(("torch.nn", "transformers.")) or base.__name__ == "Lock" for base in kind.__mro__
    ):
        return True
    if library == "datasets":
        return kind.__module__ not in ("datasets.iterable_dataset", "datasets.arrow_dataset")
    if library == "torch":
        return not kind.__module__.startswith("torch.utils.data")
    return library in _OPAQUE or (
        library in sys.stdlib_module_names and library not in _LOOKED_INTO and library != "__main__"
    )


def is_computed(kind: type, name: str) -> bool:
    """Whether an attribute is a cached property, which an object has only after it was asked for."""
    return isinstance(getattr(kind, name, None), functools.cached_property)


def is_state_of_library(name: str, part: object, owner: object) -> bool:
    """Whether an attribute of a library's dataset is a position or a setting rather than a part of it."""
    if name in _SETTINGS:
        return True
    if not name.startswith("_"):
        return False
    return type(part).__module__ != type(owner).__module__ and not isinstance(part, (list, tuple))
