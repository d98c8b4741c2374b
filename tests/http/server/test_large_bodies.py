"""Large bodies: whatever their parts, what is behind them, and where they break off."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.http.server.raw_client import Wire, message, served

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow  # the server takes seconds to end


@pytest.fixture(scope="module")
def wire(
    serving: Callable[..., AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Wire]:
    returned = "[int(array.sum()) for array in arguments]"
    with served(serving, tmp_path_factory.mktemp("server"), returned, "") as found:
        yield found


def arrays(seed: int) -> tuple[Sequence[Any], Sequence[int]]:
    """Arrays of odd sizes, some of them large, and their sums."""
    rng = np.random.default_rng(seed)
    made = [rng.integers(0, 255, size, dtype=np.uint8) for size in (300_001, 0, 5, 6_000_000, 64, 262_144, 1)]
    return made, [int(one.sum()) for one in made]


@pytest.mark.parametrize("seed", range(4))
def test_a_body_is_whole_however_it_is_cut(wire: Wire, seed: int) -> None:
    given, expected = arrays(seed)
    data = wire.call(message(*given))
    rng = np.random.default_rng(seed)
    with wire.connected() as connection:
        at = 0
        while at < len(data):
            size = int(rng.choice([1, 100, 65_537, 1_000_003]))
            connection.sendall(data[at : at + size])
            at += size
            if rng.random() < 0.2:
                time.sleep(0.005)  # the server has read what there is
        assert wire.value(connection) == expected


def test_a_connection_goes_on_behind_a_large_body(wire: Wire) -> None:
    given, expected = arrays(10)
    with wire.connected() as connection:
        parts = [part for _ in range(3) for part in (wire.call(message(*given)), wire.call(message(given[2])))]
        sending = threading.Thread(target=connection.sendall, args=(b"".join(parts),))
        sending.start()
        for _ in range(3):
            assert wire.value(connection) == expected
            assert wire.value(connection) == expected[2:3]
        sending.join()


def test_the_same_number_has_the_same_body(wire: Wire) -> None:
    given, expected = arrays(11)
    first = message(*given)
    changed = bytearray(first)
    changed[-65] ^= 1
    number = next(wire.numbers)
    with wire.connected() as connection:
        for data, status in ((first, 200), (first, 200), (bytes(changed), 409)):
            connection.sendall(wire.call(data, number))
            if status == 200:
                assert wire.value(connection) == expected
            else:
                assert wire.answer(connection)[0] == status


def test_what_is_no_message_ends_the_connection(wire: Wire) -> None:
    whole = message(np.zeros(1 << 20, np.uint8))
    for data in (whole + b"x" * 64, whole[:-64], b"x" * (1 << 20), whole[:-63] + b"x" * 63 + bytes(1 << 19)):
        with wire.connected() as connection:
            connection.sendall(wire.call(data))
            status, body = wire.answer(connection)
            assert (status, b"Malformed" in body) == (400, True), (status, body)
            assert wire.is_closed(connection)


def test_a_body_that_breaks_off_is_given_up(wire: Wire) -> None:
    whole = message(np.zeros(1 << 20, np.uint8))
    number = next(wire.numbers)
    with wire.connected() as connection:
        connection.sendall(wire.call(whole[:300_000], number, length=len(whole)))
    with wire.connected() as connection:  # sent again, it runs
        connection.sendall(wire.call(whole, number))
        assert wire.value(connection) == [0]
        connection.sendall(wire.call(whole, None, "expect: 100-continue"))
        assert wire.answer(connection)[0] == 100
        assert wire.value(connection) == [0]


def test_a_size_that_is_claimed_takes_no_memory(wire: Wire) -> None:
    whole = message(np.zeros(256 << 20, np.uint8))
    begun = 300_000  # bytes: past what the parser reads
    before = wire.resident_bytes()
    connections = [wire.connected() for _ in range(40)]
    for connection in connections:
        connection.sendall(wire.call(whole[:begun], length=len(whole)))
    time.sleep(0.5)
    taken = wire.resident_bytes() - before
    for connection in connections:
        connection.close()
    assert taken < len(connections) * 3 * begun + (8 << 20), taken


def test_memory_is_given_back(wire: Wire) -> None:
    data = message(np.zeros(64 << 20, np.uint8))
    sizes = []
    with wire.connected() as connection:
        for _ in range(6):
            connection.sendall(wire.call(data))
            assert wire.value(connection) == [0]
            sizes.append(wire.resident_bytes())
    assert sizes[-1] < sizes[1] + (80 << 20), sizes
