"""Large bodies: whatever their parts, what is behind them, and where they break off."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.http.raw import Raw, is_closed
from tests.http.subjects import TOKEN

from twinkle_http.messages import CallUpdate, unpacked
from twinkle_http.wire import encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

pytestmark = pytest.mark.slow


class Wire(Raw):
    """Calls of one component's `sums`."""

    def __init__(self, address: str) -> None:
        super().__init__(address, TOKEN)
        self.client = self.open()
        self.build(self.client, "tests.http.subjects.Adder", group="one")
        number = next(self.numbers)
        self.call(self.client, number, kind="method", target="process", group="one")
        self.process = self.value(self.client, number)

    def sums(self, body: bytes, number: int | None = None, *, length: int | None = None, **headers: str) -> bytes:
        """A request with a body, or with the begin of one of that length."""
        number = next(self.numbers) if number is None else number
        own = {"twinkle_client": self.client, "twinkle_request": str(number), **headers}
        return self.head("POST", "/twinkle/1/call", len(body) if length is None else length, **own) + body

    def returned(self, connection: socket.socket) -> Any:
        """What the call has returned whose answer comes next."""
        status, body = self.answer(connection)
        assert status == 200, body
        return self.value(self.client, unpacked(body, CallUpdate).number)

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process}/statm").read_text().split()[1]) * 4096


def message(*arrays: Any) -> bytes:
    given = {"kind": "method", "group": "one", "instance": "it", "target": "sums", "args": list(arrays)}
    return encode(given).to_bytes()


@pytest.fixture(scope="module")
def wire(address: str) -> Wire:
    return Wire(address)


def arrays(seed: int) -> tuple[Sequence[Any], Sequence[int]]:
    """Arrays of odd sizes, some of them large, and their sums."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 255, size, dtype=np.uint8) for size in (300_001, 0, 5, 6_000_000, 64, 262_144, 1)]
    return made, [int(one.sum()) for one in made]


@pytest.mark.parametrize("seed", range(2))
def test_a_body_is_whole_however_it_is_cut(wire: Wire, seed: int) -> None:
    given, expected = arrays(seed)
    data = wire.sums(message(*given))
    rng = np.random.default_rng(seed)
    with wire.connected() as connection:
        at = 0
        while at < len(data):
            size = int(rng.choice([1, 100, 65_537, 1_000_003]))
            connection.sendall(data[at : at + size])
            at += size
            if rng.random() < 0.2:
                time.sleep(0.005)  # the server has read what there is
        assert wire.returned(connection) == expected


def test_what_is_no_message_ends_the_connection(wire: Wire) -> None:
    whole = message(np.zeros(1 << 20, np.uint8))
    for data in (whole[:-64], b"x" * (1 << 20), b"x" + whole):
        with wire.connected() as connection:
            connection.sendall(wire.sums(data))
            status, body = wire.answer(connection)
            assert (status, b"Malformed" in body) == (400, True), (status, body)
            assert is_closed(connection)


def test_a_body_that_breaks_off_is_given_up(wire: Wire) -> None:
    whole = message(np.zeros(1 << 20, np.uint8))
    number = next(wire.numbers)
    for size in (0, 10, 300_000, len(whole) - 1):
        with wire.connected() as connection:
            connection.sendall(wire.sums(whole[:size], number, length=len(whole)))
    with wire.connected() as connection:  # sent again, it runs
        connection.sendall(wire.sums(whole, number))
        assert wire.returned(connection) == [0]
        connection.sendall(wire.sums(whole, expect="100-continue"))
        assert wire.answer(connection)[0] == 100
        assert wire.returned(connection) == [0]


def test_a_size_that_is_claimed_takes_no_memory(wire: Wire) -> None:
    whole = message(np.zeros(256 << 20, np.uint8))
    begun = 300_000  # bytes: past what the parser reads
    before = wire.resident_bytes()
    connections = [wire.connected() for _ in range(40)]
    for connection in connections:
        connection.sendall(wire.sums(whole[:begun], length=len(whole)))
    time.sleep(0.5)
    taken = wire.resident_bytes() - before
    for connection in connections:
        connection.close()
    assert taken < len(connections) * 3 * begun + (8 << 20), taken
