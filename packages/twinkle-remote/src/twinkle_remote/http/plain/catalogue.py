"""What is served: each class with its constructor and its remote functions, as plain JSON calls them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twinkle_remote.component.handle import SPECIAL, step_options
from twinkle_remote.http.plain.parameters import JsonParameters, constructor_parameters, method_parameters
from twinkle_remote.http.registered import vars_of
from twinkle_remote.http.server.body import RefusedError
from twinkle_remote.protocol.marks import options_under

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_remote.http.server.components import ServedClasses
    from twinkle_remote.protocol.spec import Collect

_STEPS = ("__iter__", "__next__")


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A function of a served class.

    Attributes:
        name: Its name.
        parameters: Its parameters.
        text: Its documentation.
        collect: How its results are collected.
        yields: It yields items, of which JSON has the list.
    """

    name: str
    parameters: JsonParameters
    text: str
    collect: Collect
    yields: bool = False


class ServedClass:
    """A served class.

    Args:
        cls: The class.
        name: Its full name.
        path: Its name in a path: a short one, where it is the only one.
    """

    def __init__(self, cls: type, name: str, path: str) -> None:
        self.cls = cls
        self.name = name
        self.path = path

    @cached_property
    def constructor(self) -> JsonParameters:
        """The parameters of its constructor."""
        return constructor_parameters(self.cls)

    @cached_property
    def methods(self) -> Mapping[str, ServedMethod]:
        """Its remote functions by name, and the special methods that travel."""
        return {name: self._made(name) for name in _served_names(self.cls)}

    def method(self, name: str) -> ServedMethod:
        """A function.

        Raises:
            RefusedError: It is none that is served.
        """
        found = self.methods.get(name)
        if found is None:
            why = f"{name[:80]!a} is no remote function of {self.cls.__name__}"
            raise RefusedError(403, why, "NotServed")
        return found

    def _made(self, name: str) -> ServedMethod:
        found = vars_of(self.cls, name)
        function: Any = found.fget if isinstance(found, property) else found
        bare = name in _STEPS or (name in SPECIAL and options_under(self.cls, name) is None and name != "__exit__")
        parameters = method_parameters(f"{self.cls.__name__}.{name}", None if bare else function)
        spec = options_under(self.cls, name) or SPECIAL.get(name) or step_options(self.cls)
        text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
        return ServedMethod(name, parameters, text, spec.collect, spec.yields)


class Catalogue:
    """All served classes.

    Args:
        classes: The classes.
    """

    def __init__(self, classes: ServedClasses) -> None:
        self._classes = classes
        short = [cls.__name__ for cls in classes.by_name.values()]
        self._served = {
            cls: ServedClass(cls, name, cls.__name__ if short.count(cls.__name__) == 1 else name)
            for name, cls in classes.by_name.items()
        }

    def all(self) -> Sequence[ServedClass]:
        """Every class."""
        return tuple(self._served.values())

    def find(self, name: str) -> ServedClass:
        """A class by its name in a path, or by its full name.

        Raises:
            RefusedError: It is not served.
        """
        for served in self._served.values():
            if served.path == name:
                return served
        return self._served[self._classes.find(name)]

    def named(self, name: str) -> type | None:
        """A class by its full name."""
        return self._classes.by_name.get(name)


def _served_names(cls: type) -> Sequence[str]:
    plain = [name for name in dir(cls) if not name.startswith("_") and options_under(cls, name) is not None]
    steps = _STEPS if callable(getattr(cls, "__iter__", None)) else ()
    return [*plain, *steps, *(name for name in SPECIAL if callable(getattr(cls, name, None)))]
