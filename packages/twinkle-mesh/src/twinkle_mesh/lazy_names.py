"""The public names of a package, each loaded from its module on first use. Short: each package calls it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class _Package(ModuleType):
    """A package: a module that bears one of its public names, such as `replay`, does not take the name's place."""

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self.__all__ or not isinstance(value, ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return import_module, (self.__name__,)


def load_lazily(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package, from the names that its source imports as themselves.

    A type checker reads the same list, so an unknown name is an error for it as well. `twinkle_mesh/__init__.py` shows
    how a package calls this.

    Args:
        package: The `__name__` of the package; each import stands on a line of its own.
    """
    module = sys.modules[package]
    spec: Any = module.__spec__
    home_of: dict[str, str] = {}
    for line in spec.loader.get_data(spec.origin).decode().splitlines():
        match line.split():
            case ["from", home, "import", name, "as", alias, *_] if name == alias:
                home_of[name] = home
    module.__class__ = _Package

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(home_of))}")
        value: object = getattr(import_module(home_of[name]), name)
        vars(module)[name] = value
        return value

    return sorted(home_of), load, lambda: sorted({*vars(module), *home_of})
