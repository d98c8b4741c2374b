"""A law: on workers a call of any attribute of any class runs what plain Python runs."""

from __future__ import annotations

import functools
import os
import random
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session
from twinkle_remote.protocol.targets import attribute_at, target_of

if TYPE_CHECKING:
    from collections.abc import Callable

_PROGRAMS = int(os.environ.get("TWINKLE_TEST_PROGRAMS", "60"))
_NAMES = ("step", "update", "score", "run")
remote: Any = functools.partial(remote_function, dispatch="slice_dp", collect="flatten")


def body(text: str) -> Callable[..., Any]:
    def method(self: object, rows: list[str]) -> list[str]:
        return [f"{text} {row}" for row in rows]

    return method


def calls_super(cls_of: dict[str, type], name: str) -> Callable[..., Any]:
    def method(self: object, rows: list[str]) -> list[str]:
        below: list[str] = getattr(super(cls_of["cls"], self), name)(rows)
        return [f"above {row}" for row in below]

    return method


def below(rng: random.Random, function: Callable[..., Any]) -> Callable[..., Any]:
    """Some decorator below @remote_function, or none."""

    def inner(self: object, *args: Any, **kwargs: Any) -> Any:
        return [f"decorated {row}" for row in function(self, *args, **kwargs)]

    found: list[Callable[..., Any]] = [function, inner, functools.wraps(function)(inner)]
    return rng.choice(found)


def random_class(rng: random.Random) -> type:
    """Three classes above each other, whose functions have names of their own, and bear some twice."""
    cls: type = object
    for level in range(3):
        holder: dict[str, type] = {}
        own: dict[str, Any] = {}
        for name in _NAMES:
            kind = rng.choice(["none", "plain", "remote", "alias", "super"] if level else ["none", "plain", "remote"])
            function = body(f"{level} {name}")
            if kind == "super" and hasattr(cls, name):
                function = calls_super(holder, name)
            function.__name__ = rng.choice((*_NAMES, "lambda"))
            if kind == "alias" and own:
                own[name] = rng.choice(list(own.values()))
            elif kind in ("remote", "super", "alias"):
                own[name] = remote()(below(rng, function))
            elif kind == "plain":
                own[name] = function
        cls = holder["cls"] = type(f"Level{level}", (cls,), own)
    return remote_class()(cls)


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_any_class_runs_what_python_runs(mode: str) -> None:
    with session(mode, groups=[DeviceGroup("two", 2, "CPU")]):
        for seed in range(_PROGRAMS):
            cls = random_class(random.Random(seed))
            plain, handle = cls(), on("two", DeviceMesh.from_sizes(dp_size=2)).create(cls)
            for base in cls.__mro__[:-1]:
                for name in _NAMES:
                    if hasattr(vars(base).get(name), "__twinkle_spec__"):
                        unbound: Any = vars(base)[name]
                        assert get(unbound(handle, ["a", "b", "c"])) == unbound(plain, ["a", "b", "c"]), (seed, name)
            for name in _NAMES:
                if hasattr(getattr(cls, name, None), "__twinkle_spec__"):
                    found = [get(getattr(one, name)(["a", "b", "c"])) for one in (plain, handle)]
                    assert found[0] == found[1], (seed, name)


def test_a_target_is_the_attribute_and_says_whose_if_it_is_hidden() -> None:
    class Base:
        step = remote()(body("base"))

    class Derived(Base):
        step = remote()(body("derived"))
        other = Base.step

    assert target_of(Derived, Derived.step) == "step" and target_of(Derived, Base.step) == "other"
    del Derived.other
    hidden = target_of(Derived, Base.step)
    assert hidden.startswith("step@") and attribute_at(Derived, hidden) is Base.step
    with pytest.raises(TypeError, match="no attribute of Base"):
        target_of(Base, Derived.step)
