"""A DataLoader and a served session: a dataset does not travel, and a served class that loads does the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_data import DataLoader
from twinkle_mesh import DeviceMesh
from twinkle_remote import Lazy, get, on, remote_class, remote_function, session
from twinkle_remote.errors import TwinkleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys
    from twinkle_data import DataLoader
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import current_worker, remote_class, remote_function, serve, session

    @remote_class()
    class Batches:
        def __init__(self, size: int) -> None:
            mesh = current_worker().mesh
            self.loader = DataLoader(list(range(size)), batch_size=4, device_mesh=mesh)

        def __iter__(self):
            self.left = iter(self.loader)
            return self

        @remote_function(dispatch="all", collect="flatten")
        def __next__(self) -> list[int]:
            return list(next(self.left))

    @remote_class()
    class Doubler:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def double(self, rows: list[int]) -> list[int]:
            return [2 * row for row in rows]

    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        with serve([Batches, Doubler], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@remote_class()
class Batches:
    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[list[int]]:
        return self

    @remote_function(dispatch="all", collect="flatten")
    def __next__(self) -> list[int]:
        return [self.size]


@remote_class()
class Doubler:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def double(self, rows: list[int]) -> list[int]:
        return [2 * row for row in rows]


def test_a_loader_on_a_served_group_is_refused(serving: Callable[..., AbstractContextManager[str]]) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        with pytest.raises(TwinkleError, match="RankLoader"):
            DataLoader([1, 2], batch_size=2, remote_group="two", device_mesh=mesh)
        doubler = on("two", mesh).create(Doubler)
        here = DataLoader(list(range(8)), batch_size=4)
        assert [get(doubler.double(list(batch))) for batch in here] == [[0, 2, 4, 6], [8, 10, 12, 14]]
        there = on("two", mesh).create(Batches, 8)
        batches = list(there)
        assert all(isinstance(batch, Lazy) for batch in batches)
        assert [get(doubler.double(batch)) for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14]]
