"""The annotations of a function as types, also those that it names for type checkers only."""

from __future__ import annotations

import ast
import builtins
import collections.abc
import contextlib
import importlib
import inspect
import sys
import typing
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

_MODULES = {"np": "numpy", "npt": "numpy.typing", "numpy": "numpy", "torch": "torch"}


class _Unnamed(type):
    """The kind of classes that stand for names which are not known at run time."""

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _unknown(f"{cls.__name__}.{name}")

    def __getitem__(cls, item: object) -> type:
        return cls


class Unknown(metaclass=_Unnamed):
    """A class that an annotation names and that is not loaded; its name is the text of the annotation."""


def _unknown(name: str) -> type:
    return _Unnamed(name, (Unknown,), {})


class _Names(dict[str, Any]):
    """The meanings of the names in an annotation: those of its module, else those that are imported for checkers."""

    def __init__(self, known: dict[str, Any], load: bool) -> None:
        self._known = known
        self._load = load

    def __missing__(self, name: str) -> Any:
        for_checkers = _imported_for_checkers(str(self._known.get("__name__", "")), name, self._load)
        for place in (self._known, for_checkers, vars(builtins), vars(collections.abc), vars(typing)):
            if name in place:
                return place[name]
        module = sys.modules.get(_MODULES.get(name, ""))
        return _unknown(name) if module is None else module


def _imported_for_checkers(module: str, name: str, load: bool) -> dict[str, Any]:
    """The import of a module by a name for type checkers only: nothing unless it is loaded, or can be where `load`."""
    found: dict[str, Any] = {}
    for source, attribute in _checker_imports(module).get(name, ()):
        loaded = _module(source, load)
        if loaded is None:
            continue
        if attribute and not hasattr(loaded, attribute):  # it may be a module of a package
            loaded, attribute = _module(f"{source}.{attribute}", load), ""
        if loaded is not None:
            top = sys.modules[name] if not attribute and source.startswith(f"{name}.") else loaded
            found[name] = getattr(loaded, attribute) if attribute else top
    return found


def _module(name: str, load: bool) -> ModuleType | None:
    if load and name not in sys.modules:
        with contextlib.suppress(Exception):  # it may be there for type checkers only, and raise anything
            importlib.import_module(name)
    return sys.modules.get(name)


@cache
def _checker_imports(module: str) -> dict[str, list[tuple[str, str]]]:
    """The imports below `if TYPE_CHECKING`: modules and attributes by name."""
    found: dict[str, list[tuple[str, str]]] = {}
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError, SyntaxError):  # there is no source
        return found
    guarded = [
        node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    for node in (inner for outer in guarded for inner in outer.body):
        if isinstance(node, ast.ImportFrom):
            package = sys.modules[module].__package__ or ""
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            source = ".".join(part for part in (above, node.module or "") if part)
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append((source, alias.name))
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name.partition(".")[0], []).append((alias.name, ""))
    return found


def fields_of(cls: type, *, load: bool = False) -> dict[str, Any]:
    """The annotations of a class and its bases, by field; what cannot be read becomes `Unknown`.

    Args:
        cls: A class of this program.
        load: Import what its module imports for type checkers only, as far as the annotations name it.
    """
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__[:-1]):
        known = vars(sys.modules.get(base.__module__, builtins))
        found.update({name: _read(one, known, load) for name, one in inspect.get_annotations(base).items()})
    return found


def annotations_of(function: Any, *, load: bool = False) -> dict[str, Any]:
    """The annotations of a function by parameter and "return"; what cannot be read becomes `Unknown`.

    Args:
        function: A function of this program; its annotations are evaluated as its module would.
        load: As for `fields_of`.
    """
    inner = inspect.unwrap(function)
    known = getattr(inner, "__globals__", {})
    return {name: _read(annotation, known, load) for name, annotation in getattr(inner, "__annotations__", {}).items()}


def _read(annotation: Any, known: dict[str, Any], load: bool) -> Any:
    one: Any = SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(one, known)["it"]
    except Exception:  # it names what exists for type checkers only
        return _evaluated(annotation, _Names(known, load))


def _evaluated(annotation: Any, names: _Names) -> Any:
    if not isinstance(annotation, str):
        return annotation
    try:
        return _evaluated(eval(annotation, {}, names), names)
    except Exception:  # any expression may stand in an annotation
        return _unknown(annotation)
