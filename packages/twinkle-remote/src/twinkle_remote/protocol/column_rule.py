"""The columns that a remote function reads or adds: names, or a function of arguments of the call or constructor."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Names: TypeAlias = "str | Iterable[Hashable]"
CONSTRUCTOR = "constructor"
"""The parameter of a rule that gets the arguments of the class's constructor, by name."""
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True, eq=False)
class ColumnRule:
    """The option `reads` or `adds` of a remote function.

    Attributes:
        word: Name of the option.
        names: The columns; None where the function says them, and of an object whose constructor is not known.
        function: Takes other arguments of the call, by their names; it returns columns, or None for all.
        defaults: The defaults of the remote function's parameters.
        order: The names of these parameters.
        of_constructor: The function takes the arguments of the class's constructor alone, in place of the call's.
    """

    word: Literal["reads", "adds"]
    names: tuple[Hashable, ...] | None = None
    function: Callable[..., Names | None] | None = None
    defaults: Mapping[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ()
    of_constructor: bool = False

    def of_function(self, signature: inspect.Signature, name: str) -> ColumnRule:
        """The rule of a remote function with this signature, `self` included.

        Raises:
            TypeError: The rule's function has a parameter that the remote function has not, or asks for the arguments
                of the call and of the constructor.
        """
        parameters = list(signature.parameters.values())[1:]
        known = [one.name for one in parameters if one.kind in (*_BY_NAME, inspect.Parameter.POSITIONAL_ONLY)]
        names = [] if self.function is None else [one.name for one in self._asked()]
        if CONSTRUCTOR in names and CONSTRUCTOR not in known:
            if len(names) > 1 or self.word != "reads":
                raise TypeError(
                    f"{self.word}= of {name} is a function of {', '.join(names)}: {CONSTRUCTOR} stands alone, and in "
                    "reads=, because its columns are known before any call"
                )
            return replace(self, of_constructor=True, order=tuple([one.name for one in parameters]))
        if self.function is not None and not any(one.kind is one.VAR_KEYWORD for one in parameters):
            for asked in self._asked():
                if asked.default is asked.empty and asked.kind in _BY_NAME and asked.name not in known:
                    raise TypeError(
                        f"{self.word}= of {name} is a function of {asked.name}, which is none of its arguments: "
                        f"{', '.join(known)}"
                    )
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        return replace(self, defaults=defaults, order=tuple([one.name for one in parameters]))

    def asked_of(self, method: str, divided: str, arguments: Mapping[str, Any]) -> Sequence[str]:
        """The names of the arguments that the rule's function is called with, of one call; none where names are given.

        Args:
            method: Class.method, for messages.
            divided: Name of the argument whose columns they are.
            arguments: The arguments of the call by name.

        Raises:
            TypeError: The rule's function asks for that argument, or for one that the call lacks.
        """
        if self.function is None or self.of_constructor:
            return ()
        given = {**self.defaults, **arguments}
        asked = self._asked()
        if any(one.name == divided for one in asked):
            raise TypeError(
                f"{self.word}= of {method} is a function of {divided}, whose columns it names: it is a function of the "
                "other arguments"
            )
        missing = [one.name for one in asked if _is_missing(one, given)]
        if missing:
            raise TypeError(f"{self.word}= of {method} is a function of {', '.join(missing)}, which the call lacks")
        every = any(one.kind is one.VAR_KEYWORD for one in asked)
        names = {one.name for one in asked}
        return [name for name in given if name in names or (every and name != divided)]

    def names_argument(self, name: str) -> bool:
        """Whether the rule's function has a parameter of this name, and does not take it among others as `**`."""
        return any(one.name == name and one.kind is not one.VAR_KEYWORD for one in self._asked())

    def columns(self, method: str, divided: str, arguments: Mapping[str, Any]) -> tuple[Hashable, ...] | None:
        """The columns of one call; None for all.

        Args:
            method: Class.method, for messages.
            divided: Name of the argument whose columns they are.
            arguments: The arguments of the call by name.

        Raises:
            TypeError: The rule's function does not fit the call, or it returns something else than names.
        """
        if self.function is None or self.of_constructor:
            return self.names
        given = {**self.defaults, **arguments}
        return self._named(self.function(**{name: given[name] for name in self.asked_of(method, divided, arguments)}))

    def columns_at_construction(self, arguments: Mapping[str, Any]) -> tuple[Hashable, ...] | None:
        """The columns of all calls of a component; None for all.

        Args:
            arguments: The arguments of its constructor by name, with their defaults.
        """
        assert self.function is not None
        return self._named(self.function(arguments))

    def known(self, names: tuple[Hashable, ...] | None) -> ColumnRule:
        """The rule of a component whose constructor gives these columns, if it asks for the constructor's arguments."""
        return replace(self, names=names) if self.of_constructor else self

    @property
    def is_for_columns(self) -> bool:
        """Whether an argument without columns is refused; else, where a function names them, it is read whole."""
        return self.word == "adds" or self.function is None

    def _named(self, found: Names | None) -> tuple[Hashable, ...] | None:
        return None if found is None and self.word == "reads" else names_of(self.word, found)

    def _asked(self) -> Sequence[inspect.Parameter]:
        assert self.function is not None
        return list(inspect.signature(self.function).parameters.values())


def _is_missing(asked: inspect.Parameter, given: Mapping[str, Any]) -> bool:
    return asked.kind in _BY_NAME and asked.default is asked.empty and asked.name not in given


def column_rule(word: Literal["reads", "adds"], value: object) -> ColumnRule | None:
    """The rule of an option's value; None for None.

    Raises:
        ValueError: The value is neither names nor a function.
        TypeError: The function takes arguments by place, where their names are not known.
    """
    if value is None:
        return None
    if not callable(value):
        return ColumnRule(word, names_of(word, value))
    for one in inspect.signature(value).parameters.values():
        if one.kind not in (*_BY_NAME, one.VAR_KEYWORD):
            raise TypeError(f"{word}= is called with arguments by name, and its parameter {one} takes them by place")
    return ColumnRule(word, function=value)


def names_of(word: str, value: object) -> tuple[Hashable, ...]:
    """Names of columns, each once.

    Raises:
        ValueError: They are something else, or there is none.
    """
    if isinstance(value, str):
        return (value,)
    names = (
        tuple(dict.fromkeys(value)) if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes) else ()
    )
    if not names:
        raise ValueError(
            f"{word}={value!r:.80} is not valid: it is the name of a column, a tuple of names, or a function of the "
            "call's other arguments that returns such"
        )
    return names
