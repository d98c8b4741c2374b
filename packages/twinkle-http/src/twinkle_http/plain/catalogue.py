"""The served classes, each with its constructor and its remote functions, as plain JSON calls them."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twinkle_http.plain.parameters import JsonParameters, constructor_parameters, method_parameters
from twinkle_http.registered import vars_of
from twinkle_http.server.requests.body import RefusedError
from twinkle_remote.backends.serving import remote_function, remote_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from twinkle_http.server.components import ServedClasses
    from twinkle_remote.protocol import Collect, Kind


@dataclass(frozen=True, slots=True)
class ServedMethod:
    """A function of a served class.

    Attributes:
        name: Its name.
        parameters: Its parameters.
        text: Its documentation.
        kind: Kind of its calls; of "generate", which yields items, JSON has the list.
        collect: How its results are collected.
    """

    name: str
    parameters: JsonParameters
    text: str
    kind: Kind
    collect: Collect


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
        return {name: self._made(name) for name in remote_names(self.cls)}

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
        remote = remote_function(self.cls, name)
        assert remote is not None
        found = vars_of(self.cls, name)
        function: Any = found.fget if isinstance(found, property) else found
        is_bare = remote.function is None and name != "__exit__"
        parameters = method_parameters(f"{self.cls.__name__}.{name}", None if is_bare else function)
        text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
        return ServedMethod(name, parameters, text, remote.kind, remote.spec.collect)


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
