"""Remote classes that the tests of served calls use, in their own process and in that of the server."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.conformance.subjects.components import Counter
from tests.conformance.subjects.echo import Echo

from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session

TOKEN = "a token for tests"
ODD = "a name\udcff"  # as Python reads file names that are no UTF-8


def oddly(count: int, index: int, args: Any, kwargs: Any, mesh: Any) -> Any:
    """A dispatch that raises."""
    raise LookupError(ODD)


@remote_class()
class Adder:
    """Adds up arrays."""

    @remote_function(dispatch="all", collect="first")
    def sums(self, *arrays: Any) -> list[int]:
        return [int(array.sum()) for array in arrays]

    @remote_function(dispatch="all", collect="first")
    def process(self) -> int:
        return os.getpid()


@remote_class()
class Odd:
    """Raises and gives text that is no Unicode."""

    @remote_function(dispatch="all", collect="first")
    def raises(self) -> None:
        error = LookupError(ODD)
        error.file = ODD  # type: ignore[attr-defined]  # a field that no class has
        raise error

    @remote_function(dispatch=oddly, collect="first")
    def dispatched(self, number: int) -> None: ...

    @remote_function(dispatch="all", collect="first")
    def gives(self) -> str:
        return ODD

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        if 2 in rows:
            raise LookupError(ODD)
        return rows


@remote_class()
class Maker:
    """Makes rows with columns."""

    @remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return rows

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rows: dict[str, list[int]]) -> dict[str, list[int]]:
        return {**rows, "score": [2 * one for one in rows["ids"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    async def again(self, rows: dict[str, list[int]], name: str = "again") -> dict[str, list[int]]:
        return {**rows, name: [one + 1 for one in rows["score"]]}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def there(self, rows: dict[str, list[int]]) -> list[tuple[int, list[str]]]:
        return [(one, list(rows)) for one in rows["ids"]]


if __name__ == "__main__":
    from tests.http import subjects

    from twinkle_http.server import serve as ending

    ending.LAST_UPDATE_SECONDS = 0.2  # at its end, for clients that never read
    sys.setswitchinterval(1e-4)
    groups = [DeviceGroup(name, size, "CPU") for name, size in (("one", 1), ("two", 2), ("four", 4))]
    with session("threads", groups=groups, max_in_flight=4):
        counter = Counter(10, remote_group="two", instance_id="shared")  # type: ignore[call-arg]  # placement
        with serve((subjects.Adder, subjects.Odd, subjects.Maker, counter, Echo), port=0, token=TOKEN) as server:
            print(server.address, flush=True)
            sys.stdin.read()
