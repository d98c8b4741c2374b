"""Finished rows of a served stream are kept by its client, and outlive the server."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_mesh import DeviceMesh
from twinkle_remote import Lazy, get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

TOKEN = "a token for tests"
WAIT = 60.0
SERVER = """
    import sys
    from pathlib import Path
    import numpy as np
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, serve, session

    @remote_class()
    class Maker:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, rows: list[int]) -> np.ndarray:
            with Path(sys.argv[2]).open("a") as file:
                file.writelines(f"{row}\\n" for row in rows)
            return np.repeat(rows, 8).reshape(len(rows), 8)

    with session("threads", groups=[DeviceGroup("makers", 2, "CPU")]):
        with serve([Maker], port=0, token=sys.argv[1]) as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> np.ndarray:
        return np.array(rows)


class Source:
    """Batches of five numbers, thirty in all."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter([list(range(at, at + 5)) for at in range(0, 30, 5)])


@pytest.mark.slow
def test_rows_that_a_client_spooled_are_not_made_again_by_another_server(
    serving: Callable[..., AbstractContextManager[str]], tmp_path: Path
) -> None:
    made, spool = tmp_path / "made", tmp_path / "spool"
    options: Any = {"rows": 5, "ahead": 12, "chunk": 3, "order": "source", "spool": spool}
    before: list[int] = []
    with serving(SERVER, TOKEN, str(made)) as address, session("http", address=address, token=TOKEN):
        calls = on("makers", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        with stream(Source(), calls.make, **options) as batches:
            for _, batch in zip(range(2), batches, strict=False):
                assert isinstance(batch, Lazy)
                before += get(batch)[:, 3].tolist()
            until = time.monotonic() + WAIT
            while sum(int(path.name.split("-")[2]) for path in spool.glob("*.rows")) < 21:
                assert time.monotonic() < until
                time.sleep(0.01)
            state = json.loads(json.dumps(batches.state_dict()))
    kept = {int(row) for row in made.read_text().split()}
    made.unlink()
    with serving(SERVER, TOKEN, str(made)) as address, session("http", address=address, token=TOKEN):
        calls = on("makers", DeviceMesh.from_sizes(dp_size=2)).create(Maker)
        with stream(Source(), calls.make, **options) as batches:
            batches.load_state_dict(state)
            rows = [row for batch in batches for row in get(batch)[:, 3].tolist()]
    assert [*before, *rows] == list(range(30))
    again = [int(row) for row in made.read_text().split()]
    assert len(again) == len(set(again)) <= 9 and len(kept & set(again)) <= 30 - 21
