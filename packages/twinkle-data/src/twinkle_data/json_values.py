"""The state of a stream as values that JSON keeps; it may hold numbers as keys, tuples, sets, bytes and arrays."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.sources.fingerprint_types import is_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARK: Final = "$twinkle"


def to_json_values(value: Any) -> Any:
    """The value with lists and dicts in place of what JSON changes or refuses; objects of other types stay."""
    kind = type(value)
    if kind is list:
        return [to_json_values(part) for part in value]
    if kind is dict:
        if _MARK not in value and all(type(key) is str for key in value):
            return {key: to_json_values(part) for key, part in value.items()}
        return _marked("dict", [[to_json_values(key), to_json_values(part)] for key, part in value.items()])
    if kind in (tuple, set, frozenset):
        return _marked(kind.__name__, [to_json_values(part) for part in value])
    if kind in (bytes, bytearray):
        return _marked(kind.__name__, base64.b64encode(value).decode())
    if isinstance(value, np.generic):
        value = np.asarray(value)
        return _marked("number", value.tolist(), value.dtype.str) if value.dtype.kind in "biuf" else value[()]
    if kind is np.ndarray and value.dtype.kind in "biuf":
        return _marked("array", value.reshape(-1).tolist(), value.dtype.str, value.shape)
    if is_tensor(value) and str(value.layout) == "torch.strided" and not (value.is_complex() or value.is_quantized):
        numbers = value.detach().reshape(-1).tolist()
        return _marked("tensor", numbers, str(value.dtype).rpartition(".")[2], value.shape)
    return value


def from_json_values(value: Any) -> Any:
    """The value from which `to_json_values` made these."""
    if isinstance(value, list):
        return [from_json_values(part) for part in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: from_json_values(part) for key, part in value.items()}
    kind, parts, dtype = value[_MARK], value["value"], str(value.get("dtype"))
    if kind == "dict":
        return {from_json_values(key): from_json_values(part) for key, part in parts}
    if kind in ("bytes", "bytearray"):
        words = base64.b64decode(parts)
        return words if kind == "bytes" else bytearray(words)
    if kind == "tensor":
        import torch

        return torch.tensor(parts, dtype=getattr(torch, dtype)).reshape(value["shape"])
    if kind in ("array", "number"):
        array = np.array(parts, dtype=dtype)
        return array.reshape(value["shape"]) if kind == "array" else array[()]
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](from_json_values(parts))


def _marked(kind: str, value: Any, dtype: str | None = None, shape: Iterable[int] = ()) -> dict[str, Any]:
    found = {_MARK: kind, "value": value}
    return found if dtype is None else {**found, "dtype": dtype, "shape": list(shape)}
