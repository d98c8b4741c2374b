"""The public names of a package, each loaded from its module on first use."""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class _Package(ModuleType):
    """A package with a public name that one of its modules also bears: an import of the module does not replace it."""

    def __setattr__(self, name: str, value: object) -> None:
        is_module = isinstance(value, ModuleType) and value.__name__ == f"{self.__name__}.{name}"
        if not is_module or name not in self.__all__:
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        """Travel by name: cloudpickle does this for modules of the type `ModuleType` only."""
        from importlib import import_module

        return import_module, (self.__name__,)


def load_lazily(package: str) -> tuple[list[str], Callable[[str], object], Callable[[], list[str]]]:
    """Return `__all__`, `__getattr__` and `__dir__` of a package that loads its names on first use.

    The names are those that its source imports under their own name, each on a line of its own. So a type checker reads
    the same list, and an unknown name is an error for it as well::

        if TYPE_CHECKING:
            from package.module import name as name
        else:
            __all__, __getattr__, __dir__ = load_lazily(__name__)

    Args:
        package: The `__name__` of the package.

    Raises:
        ImportError: The source of the package is not there, as where only compiled modules were installed.
    """
    home_of = _homes(package)
    every, homes = sorted(home_of), set(home_of.values())
    if any(f"{package}.{name}" in homes for name in every):
        sys.modules[package].__class__ = _Package
    found = vars(sys.modules[package])

    def load(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(every)}")
        from importlib import import_module

        value: object = getattr(import_module(home_of[name]), name)
        found[name] = value
        return value

    return every, load, lambda: sorted({*found, *every})


def _homes(package: str) -> dict[str, str]:
    """Return the module of each name that the source of a package imports as itself."""
    spec = sys.modules[package].__spec__
    origin = str(spec and spec.origin)
    if not origin.endswith(".py"):
        raise ImportError(f"{package} reads its public names from its source, which is not there; install it with *.py")
    loader: Any = spec and spec.loader
    source: bytes = loader.get_data(origin)  # get_source would load the tokenizer, for a coding that nobody declares
    homes: dict[str, str] = {}
    for line in source.decode().splitlines():
        match line.split():
            case ["from", home, "import", name, "as", alias, *_] if name == alias:
                homes[name] = home
    return homes
