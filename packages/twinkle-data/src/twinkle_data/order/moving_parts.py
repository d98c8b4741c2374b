"""The attributes that a sampler changes from pass to pass: a counter, an epoch, a list that it shuffles in place.

They decide its order as much as its generators do. So a state holds those that are not as they were at first.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from twinkle_data.errors import NotResumableError, StateMismatchError
from twinkle_data.order.generator_states import is_generator
from twinkle_data.sources.fingerprint import digest
from twinkle_data.sources.fingerprint_types import is_opaque, is_tensor
from twinkle_data.sources.parts import attributes_of, library_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NUMBERS: Final = (bool, int, float, str, type(None))
_CONTAINERS: Final[dict[str, Any]] = {"list": list, "tuple": tuple, "deque": deque, "set": set}
_OWNERS: Final = 64
_KEPT: Final = 1 << 16  # elements of a list or an array


class MovingParts:
    """The numbers, texts, lists, arrays and tensors of a sampler and of the objects that it holds, without datasets.

    Args:
        sampler: The sampler, before its first pass.
    """

    def __init__(self, sampler: object) -> None:
        self._owners = dict(_owners(sampler))
        self._first = {path: digest(value) for path, value in self._values()}
        self._copies = self._saved_values(_is_short)

    def moved(self) -> dict[str, Any]:
        """Those that are not as they were at first, as JSON values by their path.

        Raises:
            NotResumableError: One cannot be saved.
        """
        found = {}
        for path, value in self._values():
            if not self._is_moved(path, value):
                continue
            try:
                found[path] = _saved(value)
            except TypeError:
                raise NotResumableError(
                    f"the sampler changes its attribute {path!r} from pass to pass, and holds a {type(value).__name__} "
                    "there, which cannot be saved: keep numbers, lists, arrays or tensors there, or draw the order of "
                    "each pass from a seed and the epoch of set_epoch"
                ) from None
        return found

    def moved_short(self) -> dict[str, Any]:
        """The same, without what cannot be saved, and without long lists."""
        found = self._saved_values(_is_short)
        return {path: found[path] for path, value in self._values() if path in found and self._is_moved(path, value)}

    def _is_moved(self, path: str, value: Any) -> bool:
        return self._first.get(path) != digest(value)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Put back what a block changes."""
        before = self._saved_values(lambda _: True)
        digests = {path: digest(value) for path, value in self._values()}
        yield
        for path, value in list(self._values()):
            if path in before and digests[path] != digest(value):
                self._set(path, _opened(before[path]))

    def restore(self, saved: dict[str, Any]) -> None:
        """Set saved values, and the others to what they were at first.

        Raises:
            StateMismatchError: The sampler has no such attribute, or one has changed that the state does not hold.
        """
        for path, value in saved.items():
            self._set(path, _opened(value))
        for path, value in list(self._values()):
            if path in saved or not self._is_moved(path, value):
                continue
            if path in self._copies:
                self._set(path, _opened(self._copies[path]))
            elif path not in self._first:
                self._remove(path)
            else:
                raise StateMismatchError(
                    f"the sampler has changed its attribute {path!r}, and the state was saved before that: load it "
                    "into a new sampler"
                )

    def _values(self) -> Iterator[tuple[str, Any]]:
        for owner, one in self._owners.items():
            for name, value in attributes_of(one).items():
                if _may_decide(value):
                    yield owner + name, value

    def _saved_values(self, wanted: Callable[[Any], bool]) -> dict[str, Any]:
        """Copies of those values that are plain data."""
        found = {}
        for path, value in self._values():
            with suppress(TypeError):  # no plain data: it is not saved
                if wanted(value):
                    found[path] = _saved(value)
        return found

    def _remove(self, path: str) -> None:
        """Remove an attribute that the sampler has added: a default of its class counts again."""
        owner, dot, name = path.rpartition(".")
        with suppress(AttributeError):  # it is gone already, or is not to be removed
            delattr(self._owners[owner + dot], name)

    def _set(self, path: str, value: Any) -> None:
        owner, dot, name = path.rpartition(".")
        one: Any = self._owners.get(owner + dot)
        before: Any = getattr(one, name, None)
        try:
            if type(before) is list and type(value) is list:
                before[:] = value  # others may hold the same list
            elif is_tensor(before) and is_tensor(value) and before.shape == value.shape:
                before.copy_(value)
            elif isinstance(before, np.ndarray) and isinstance(value, np.ndarray) and before.shape == value.shape:
                before[...] = value
            else:
                setattr(one, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            raise StateMismatchError(
                f"the state holds a value for the attribute {path!r} of the sampler, which cannot be set here "
                f"({type(error).__name__}: {error}); build the sampler as it was saved"
            ) from error


def _owners(sampler: object) -> Iterator[tuple[str, Any]]:
    """The sampler and the objects that it holds, by their path, which ends with a dot; datasets are left out."""
    waiting, seen = [("", sampler)], {id(sampler)}
    for path, one in waiting:
        yield path, one
        for name, part in attributes_of(one).items():
            if id(part) not in seen and len(waiting) < _OWNERS and _is_entered(part, one):
                seen.add(id(part))
                waiting.append((f"{path}{name}.", part))


def _is_entered(part: Any, owner: object) -> bool:
    """Whether it is a sampler or a helper of the one that holds it, and no dataset, model or trainer."""
    kind = type(part)
    if isinstance(part, type) or not hasattr(part, "__dict__") or hasattr(kind, "__getitem__"):
        return False
    if is_generator(part) or is_tensor(part) or is_opaque(kind):
        return False
    return hasattr(kind, "__iter__") or kind.__module__ == type(owner).__module__


def _may_decide(value: Any) -> bool:
    """Whether a value is plain data, or an iterator."""
    if isinstance(value, (*_NUMBERS, np.generic, np.ndarray, *_CONTAINERS.values(), dict)) or is_tensor(value):
        return True
    return hasattr(type(value), "__next__") and library_of(type(value)) in ("builtins", "itertools")


def _is_short(value: Any) -> bool:
    """Whether a copy of its first value is kept."""
    if isinstance(value, (*_NUMBERS, np.generic)):
        return True
    return hasattr(type(value), "__len__") and getattr(value, "ndim", 1) > 0 and len(value) <= _KEPT


def _saved(value: Any) -> Any:
    """A value as JSON values.

    Raises:
        TypeError: It is no plain data.
    """
    if isinstance(value, np.generic):
        return _saved(value.item())
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return {"array": value.tolist(), "dtype": value.dtype.str}
    if is_tensor(value):
        return {"tensor": value.detach().cpu().tolist(), "dtype": str(value.dtype).rpartition(".")[2]}
    if isinstance(value, dict):
        return {"dict": [[_saved(key), _saved(part)] for key, part in value.items()]}
    for name, kind in _CONTAINERS.items():
        if type(value) is kind:
            plain = set(map(type, value)) <= set(_NUMBERS)
            return {name: list(value) if plain else [_saved(part) for part in value]}
    if type(value) in _NUMBERS:
        return value
    raise TypeError(type(value).__name__)


def _opened(saved: Any) -> Any:
    if not isinstance(saved, dict):
        return saved
    if "array" in saved:
        return np.array(saved["array"], dtype=saved["dtype"])
    if "tensor" in saved:
        import torch

        return torch.tensor(saved["tensor"], dtype=getattr(torch, saved["dtype"]))
    if "dict" in saved:
        return {_opened(key): _opened(part) for key, part in saved["dict"]}
    ((name, parts),) = saved.items()
    opened = map(_opened, parts)
    return _CONTAINERS[name](opened)
