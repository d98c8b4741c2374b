"""Components whose attributes and functions have different names, and methods that raise Python's own signals."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING, Any

from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNALS: dict[str, type[BaseException]] = {
    "stop": StopIteration,
    "async stop": StopAsyncIteration,
    "exit": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "system": SystemExit,
}


def step(self: object, rows: list[str]) -> list[str]:
    """The function of an alias."""
    return [f"trained {row}" for row in rows]


_train = step


def tagged(method: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator that takes an argument of its own."""

    @functools.wraps(method)
    def inner(self: object, *args: Any, tag: str | None = None, **kwargs: Any) -> Any:
        return [f"{tag} {row}" for row in method(self, *args, **kwargs)]

    return inner


class Base:
    """A base whose remote functions are overridden, and called by `super` and by name."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def score(self, rows: list[str]) -> list[str]:
        """Overridden."""
        return [f"base {row}" for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def again(self, rows: list[str]) -> list[str]:
        """Overridden, and called by `super`."""
        return [f"again {row}" for row in rows]


@remote_class()
class Aliased(Base):
    """Attributes that are other functions than their names say."""

    def step(self, rows: list[str]) -> list[str]:
        """A method that no call may reach."""
        return [f"helper {row}" for row in rows]

    update = remote_function(dispatch="slice_dp", collect="flatten")(_train)

    def score(self, rows: list[str]) -> list[str]:
        """Remote, as the base's."""
        return [f"derived {row}" for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def again(self, rows: list[str]) -> list[str]:
        """The base's, and more."""
        return [f"derived {row}" for row in super().again(rows)]

    @remote_function(dispatch="slice_dp", collect="flatten")
    @tagged
    def tag(self, rows: list[str]) -> list[str]:
        """Below a decorator with an argument of its own."""
        return list(rows)


@remote_class()
class Signalling:
    """Raises what Python itself raises at the end of iterators, generators and tasks."""

    @remote_function(dispatch="all", collect="first")
    def plain(self, name: str) -> int:
        """From an ordinary method."""
        raise SIGNALS[name]("signal")

    @remote_function(dispatch="all", collect="first")
    async def coroutine(self, name: str) -> int:
        """From a coroutine."""
        raise SIGNALS[name]("signal")

    @remote_function(dispatch="all", collect="first")
    def ping(self) -> str:
        """Do nothing."""
        return "here"
