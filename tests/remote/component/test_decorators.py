"""Options are checked where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import current_worker, on, remote_class, remote_function, session

untyped_class: Any = remote_class
untyped_function: Any = remote_function


def decorate(**options: Any) -> Any:
    def method(self: object, a: Any, b: int = 1) -> Any:
        return a

    return untyped_function(**options)(method)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dispatch": "slyce"}, r"dispatch='slyce' .* 'slice', 'all', 'slice_dp', 'any' or a callable"),
        ({"collect": "flat"}, r"collect='flat' .* 'none', 'flatten', 'mean', 'sum', 'first', 'last_pp' or a callable"),
        ({"execute": "last"}, r"execute='last' .* 'first', 'all'"),
        ({"sticky": "rows"}, "sticky='rows' .* needs dispatch='any', got 'slice'"),
        ({"dispatch": "any", "collective": True}, "use execute='all' with it, and a dispatch that calls them all"),
        ({"execute": "first", "collective": True}, "collective"),
        ({"dispatch": "any", "split": "rows"}, "split= needs dispatch"),
        ({"timeout": 0}, "timeout=0 is not valid: it is seconds above 0, or None"),
        ({"lazy_collect": "no"}, "lazy_collect='no' .* True, False, None"),
        ({"split": "a", "replicate": "a"}, "name the same arguments"),
        ({"dispatch": "all", "split": "a"}, "needs dispatch 'slice' or 'slice_dp', got 'all'"),
    ],
)
def test_options_of_the_wrong_value_name_the_valid_ones(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decorate(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeot": 3}, "timeot"),
        ({"split": "c"}, r"name arguments of .*method, and 'c' is none of \['a', 'b'\]"),
        ({"replicate": ("a", "c")}, "'c' is none of"),
        ({"collect": len}, r"collect is called with \(results, device_mesh\), and len"),
        ({"dispatch": lambda self, x: x}, r"write @remote_function\(\) with parentheses"),
    ],
)
def test_what_cannot_be_an_option_says_so(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        decorate(**options)


def test_an_override_whose_arguments_have_no_names_is_refused_where_one_is_divided() -> None:
    @remote_class()
    class Base:
        @remote_function("slice_dp", split=("rows",))
        def learn(self, rows: list[int], rate: float = 1.0) -> Any:
            return len(rows)

    class Timed(Base):
        def learn(self, *args: Any, **kwargs: Any) -> Any:
            return super().learn(*args, **kwargs)

    class Named(Base):
        def learn(self, rows: list[int], *args: Any, **kwargs: Any) -> Any:
            return super().learn(rows, *args, **kwargs)

    mesh = DeviceMesh.from_sizes(dp_size=2)
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")], lazy_collect=False):
        assert on("two", mesh).create(Named).learn([1, 2, 3, 4]) == [2, 2]
        with pytest.raises(TypeError, match=r"hides 'rows' in \*args"):
            on("two", mesh).create(Timed)


async def __len__(self: object) -> int:  # noqa: N807  a special method of a class
    return 1


def streaming(self: object) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (__len__, "__len__ is a coroutine, and Python needs its value at once"),
        (staticmethod(len), "for methods of an object, got a staticmethod"),
        (property(len), "put @property above @remote_function"),
        (streaming, r"streaming.* yields, and a remote function returns"),
    ],
)
def test_only_plain_methods_can_be_remote(method: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        untyped_function()(method)


def test_classes_are_checked() -> None:
    with pytest.raises(TypeError, match=r"@remote_class\(\) .*Plain"):
        untyped_class(type("Plain", (), {}))
    with pytest.raises(ValueError, match=r"execute='some' .* 'first', 'all'"):
        untyped_class(execute="some")


@remote_class()
class Base:
    def __init__(self, size: int, device_mesh: object = None) -> None:
        self.size = size
        self.mesh = device_mesh

    @remote_function(dispatch="all", collect="first")
    def tell(self) -> Any:
        return self.size, self.mesh is None, current_worker().group


class Passing(Base):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seen = sorted(kwargs)
        super().__init__(*args, **kwargs)


class Fixed(Base):
    def __init__(self) -> None:
        super().__init__(3, None)


def test_keywords_of_placement_reach_the_constructor_that_declares_them() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=1)
    for mode in ("local", "threads"):
        with session(mode, groups=[DeviceGroup("one", 1, "CPU")]):
            for cls in (Base, Passing):
                assert on("one", mesh).create(cls, 2).tell() == (2, False, "one"), (mode, cls)
            assert on("one", mesh).create(Fixed).tell() == (3, True, "one")
    assert Passing(1).seen == []
