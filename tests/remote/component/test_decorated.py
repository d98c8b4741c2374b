"""Decorators above @remote_function are refused where the class is decorated, or when its first object is made."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import get, on, remote_class, remote_function, session

remote: Any = functools.partial(remote_function, dispatch="all", collect="first")


class Holder:
    """A descriptor that keeps its function in a field."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return functools.partial(self.function, instance)


def wrapped(function: Any) -> Any:
    return functools.wraps(function)(lambda self, *args: function(self, *args))


def unnamed(function: Any) -> Any:
    return lambda self, *args: function(self, *args)


ABOVE = [
    wrapped,
    unnamed,
    lambda function: wrapped(unnamed(function)),
    lambda function: unnamed(wrapped(function)),
    functools.lru_cache,
    functools.cached_property,
    functools.partialmethod,
    Holder,
    staticmethod,
    classmethod,
    lambda function: property(unnamed(function)),
    lambda function: functools.partial(function, 1),
]


@pytest.mark.parametrize("above", ABOVE)
def test_a_decorator_above_is_refused(above: Any) -> None:
    def own(self: object) -> int:
        return 1

    body = {"score": above(remote()(own))}
    with pytest.raises(TypeError, match=r"above @remote_function\(\)"):
        remote_class()(type("Scorer", (), dict(body)))
    with pytest.raises(TypeError, match=r"above @remote_function\(\)"):
        remote_class()(type("Scorer", (type("Mixin", (), dict(body)),), {}))
    subclass = type("Sub", (remote_class()(type("Scorer", (), {"other": remote()(own)})),), dict(body))
    with pytest.raises(TypeError, match=r"above @remote_function\(\)"):
        subclass()


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_what_calls_a_remote_function_that_is_there_is_allowed(mode: str) -> None:
    @remote_class()
    class Base:
        @remote_function(dispatch="all", collect="first")
        def score(self, value: int = 1) -> int:
            return value

        two = functools.partialmethod(score, 2)

        @property
        @remote_function(dispatch="all", collect="first")
        def place(self) -> str:
            return "here"

    @remote_class()
    class Derived(Base):
        score = unnamed(Base.score)

    with session(mode, groups=[DeviceGroup("one", 1, "CPU")]):
        for cls in (Base, Derived):
            one: Any = on("one").create(cls)
            assert get([one.score(), one.two(), one.place]) == [1, 2, "here"]


def test_only_methods_are_decorated() -> None:
    for value in (functools.partial(len), 3, type("Call", (), {"__call__": len})(), staticmethod(len), int):
        with pytest.raises(TypeError, match="methods of an object"):
            remote()(value)


def test_names_that_a_decorator_hides_are_given_by_keyword() -> None:
    def own(self: object, rows: list[int], stop: list[str]) -> list[int]:
        return rows

    def passing(self: object, *args: Any, **kwargs: Any) -> Any:
        return own(self, *args, **kwargs)

    with pytest.raises(TypeError, match="none of"):
        remote(replicate="stopp")(functools.wraps(own)(passing))
    cls = remote_class()(
        type(
            "Sampler",
            (),
            {
                "run": remote_function(dispatch="slice_dp", collect="flatten", replicate="stop")(
                    functools.wraps(own)(passing)
                )
            },
        )
    )
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        one: Any = on("two").create(cls)
        assert get(one.run([1, 2, 3], stop=["x"])) == [1, 2, 3]
        with pytest.raises(TypeError, match="by keyword"):
            one.run([1, 2, 3], ["x"])


def test_special_methods_have_their_value_at_once_whatever_their_function_is_called() -> None:
    async def length(self: object) -> int:
        return 1

    with pytest.raises(TypeError, match="at once"):
        remote_class()(type("Sized", (), {"__len__": remote()(length)}))
