"""Classes of every kind, each of which can be remote."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from twinkle_remote import remote_class, remote_function

T = TypeVar("T")


@remote_class()
class Base:
    """A constructor with keywords of its own."""

    def __init__(self, name: str, *, loud: bool = False) -> None:
        self.name = name.upper() if loud else name

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Return what every example answers."""
        return f"{self.name} {text}"


class Inheriting(Base):
    """A subclass without a constructor."""


class Extending(Base):
    """A subclass with one, which passes its keywords on."""

    def __init__(self, name: str, suffix: str, **rest: Any) -> None:
        super().__init__(name, loud=True, **rest)
        self.suffix = suffix

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """The base's answer and more."""
        return f"{super().tell(text)} {self.suffix}"


class Overriding(Base):
    """A subclass whose method is plain, and has the options of the one that it overrides."""

    def tell(self, text: str) -> str:
        """Another answer."""
        return f"{self.name} overrides {text}"


@remote_class()
class Decorated(Base):
    """A subclass that is decorated as well."""


@remote_class()
class Shape(ABC):
    """An abstract class with a remote method."""

    @remote_function(dispatch="all", collect="first")
    @abstractmethod
    def tell(self, text: str) -> str:
        """Left to subclasses."""


class Square(Shape):
    """A concrete one."""

    def tell(self, text: str) -> str:
        """Its answer."""
        return f"square {text}"


@remote_class()
class Box(Generic[T]):
    """A generic class."""

    def __init__(self, item: T) -> None:
        self.item = item

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"box of {self.item} {text}"


@remote_class()
@dataclass
class Plain:
    """A dataclass."""

    name: str
    rows: list[int] = field(default_factory=list)

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"{self.name} {self.rows} {text}"


@remote_class()
@dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    name: str

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"frozen {self.name} {text}"


@dataclass
@remote_class()
class Reversed:
    """A dataclass that became one after it was remote."""

    name: str

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"reversed {self.name} {text}"


@remote_class()
@dataclass(slots=True, weakref_slot=True)
class Slotted:
    """A dataclass with slots."""

    name: str

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"slotted {self.name} {text}"


@remote_class()
class Made:
    """A class with `__new__` and no `__init__`."""

    name: str

    def __new__(cls, name: str) -> Made:
        """Set what a constructor would."""
        made = super().__new__(cls)
        made.name = name
        return made

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"made {self.name} {text}"


@remote_class()
class MadeBelow(Base):
    """A subclass with `__new__`, which has to be decorated as well."""

    seen: str

    def __new__(cls, name: str, **rest: Any) -> MadeBelow:
        """Look at the arguments."""
        made = super().__new__(cls)
        made.seen = name
        return made

    def tell(self, text: str) -> str:
        """Its answer."""
        return f"{self.seen} then {self.name} {text}"


@remote_class()
class Registry:
    """A base that wants keywords of its subclasses."""

    kinds: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, *, kind: str, **rest: Any) -> None:
        """Take in a subclass."""
        super().__init_subclass__(**rest)
        Registry.kinds[cls.__name__] = kind

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"{Registry.kinds[type(self).__name__]} {len(Registry.kinds)} {text}"


class Registered(Registry, kind="registered"):
    """A subclass with its keyword."""


@remote_class()
class Rows(list[int]):
    """A kind of list."""

    def __init__(self, rows: list[int]) -> None:
        super().__init__(rows)

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"{sum(self)} {text}"


@remote_class()
class Dynamic:
    """A class that finds its attributes when they are asked for."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return f"dynamic {name}"

    @remote_function(dispatch="all", collect="first")
    def tell(self, text: str) -> str:
        """Its answer."""
        return f"{self.anything} {text}"


EXAMPLES: tuple[tuple[Any, tuple[Any, ...], str], ...] = (
    (Base, ("base",), "base x"),
    (Inheriting, ("heir",), "heir x"),
    (Extending, ("big", "tail"), "BIG x tail"),
    (Overriding, ("over",), "over overrides x"),
    (Decorated, ("twice",), "twice x"),
    (Square, (), "square x"),
    (Box, (5,), "box of 5 x"),
    (Plain, ("plain", [1]), "plain [1] x"),
    (Frozen, ("ice",), "frozen ice x"),
    (Reversed, ("late",), "reversed late x"),
    (Slotted, ("slim",), "slotted slim x"),
    (Made, ("new",), "made new x"),
    (MadeBelow, ("below",), "below then below x"),
    (Registered, (), "registered 1 x"),
    (Rows, ([1, 2],), "3 x"),
    (Dynamic, (), "dynamic anything x"),
)


@remote_class()
class Named:
    """Takes arguments whose names are words of the call path too."""

    def __init__(self, kind: int, cls: int, args: int, name: int, instance: int) -> None:
        self.given = [kind, cls, args, name, instance]

    @remote_function(dispatch="all", collect="first")
    def method(self, bound_method: int, kind: int, args: int, name: int, value: int) -> list[int]:
        """Return what the constructor and the method were given."""
        return [*self.given, bound_method, kind, args, name, value]
