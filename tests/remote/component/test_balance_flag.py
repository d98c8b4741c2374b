"""`balance="flag"`: a flag of the constructor says whether the calls of one component are balanced."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import explain, get, on, register_splitter, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Sequence


class Texts(list[str]):
    """Rows that cost their letters."""


class TextsSplitter:
    def length(self, value: Texts) -> int:
        return len(value)

    def slice(self, value: Texts, start: int, stop: int) -> Texts:
        return Texts(list(value)[start:stop])

    def take(self, value: Texts, rows: Sequence[int]) -> Texts:
        return Texts(value[row] for row in rows)

    def concat(self, values: Sequence[Texts]) -> Texts:
        return Texts(text for value in values for text in value)

    def costs(self, value: Texts) -> Sequence[float]:
        return [float(len(text)) for text in value]


register_splitter(Texts, TextsSplitter())


@remote_class()
class Shares:
    def __init__(self, even: bool = True) -> None:
        self.given: list[list[int]] = []

    @remote_function(dispatch="slice_dp", collect="flatten", balance="even")
    def echo(self, rows: Texts) -> Texts:
        self.last = rows
        return rows

    @remote_function(dispatch="all")
    def seen(self) -> Any:
        return self.last


@remote_class()
class Wrong:
    @remote_function(dispatch="slice_dp", collect="flatten", balance="strange")
    def echo(self, rows: list[int]) -> list[int]:
        return rows


MESH = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")
ROWS = Texts(["aaaaaaaa", "bb", "c", "dddd", "e"])
IN_ORDER = [Texts(["aaaaaaaa", "bb", "c"]), Texts(["dddd", "e"])]
EVEN = [Texts(["aaaaaaaa"]), Texts(["bb", "c", "dddd", "e"])]


@pytest.mark.parametrize(
    ("given", "even"),
    [((), True), ((True,), True), ((False,), False)],
)
def test_each_component_says_whether_its_calls_are_balanced(given: tuple[bool, ...], even: bool) -> None:
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        shares = on("group", MESH).create(Shares, *given)
        one = pickle.loads(pickle.dumps(shares))
        for handle in (shares, one):
            assert get(handle.echo(ROWS)) == ROWS
            assert get(handle.seen()) == (EVEN if even else IN_ORDER)
            lazy = handle.echo(handle.echo(ROWS))
            assert get(lazy) == ROWS
            assert get(handle.seen()) == (EVEN if even else IN_ORDER)
            assert ("order of the call" in str(explain(handle.echo, ROWS))) is even


def test_a_flag_that_the_constructor_does_not_have_is_named() -> None:
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]), pytest.raises(TypeError, match="strange"):
        on("group", MESH).create(Wrong)
