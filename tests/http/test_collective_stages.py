"""A collective stage of a served session: all ranks enter each chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

TOKEN = "a token for tests"
SERVER = """
    import sys, threading
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve, session

    together = threading.Barrier(4)

    @remote_class()
    class Meeting:
        @remote_function(dispatch="slice_dp", collect="flatten", collective=True)
        def meet(self, rows: list[int]) -> list[int]:
            together.wait(20)
            return [2 * row for row in rows]

    with session("threads", groups=[DeviceGroup("four", 4, "CPU")]):
        with serve([Meeting], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@remote_class()
class Meeting:
    @remote_function(dispatch="slice_dp", collect="flatten", collective=True)
    def meet(self, rows: list[int]) -> list[int]:
        return rows


@pytest.mark.parametrize("ahead", [0, 6])
def test_all_ranks_enter_each_chunk(serving: Callable[..., AbstractContextManager[str]], ahead: int) -> None:
    with serving(SERVER, TOKEN) as address, session("http", address=address, token=TOKEN):
        meeting = on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Meeting)
        with stream([[i, i + 1, i + 2] for i in range(0, 9, 3)], meeting.meet, rows=4, ahead=ahead) as batches:
            assert [list(get(batch)) for batch in batches] == [[0, 2, 4, 6], [8, 10, 12, 14], [16]]
