"""Lines of several ranks that are equal become one, and no line is lost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_ray.ray_internals import log_dispatcher
from twinkle_ray.telemetry.logs import Fold, WorkerLogs, relabelled

if TYPE_CHECKING:
    from collections.abc import Iterator


def folded(*lines: tuple[str, str]) -> list[str]:
    out: list[str] = []
    fold = Fold(lambda line, _: out.append(line))
    for label, line in lines:
        fold.add(label, line, False)
    fold.flush()
    fold.flush()
    return out


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("a[0/2 dp=0]", "x")], ["a[0/2 dp=0] x"]),
        ([("a[0/2]", "x"), ("a[1/2]", "x")], ["a[all 2] x"]),
        ([("a[0/8]", "x"), ("a[2/8]", "x"), ("a[3/8]", "x"), ("a[4/8]", "x")], ["a[0,2-4 of 8] x"]),
        ([("a[0/2]", "x"), ("b[1/2]", "x")], ["a[0/2] x", "b[1/2] x"]),
        ([("a[0/2]", "x"), ("a[0/2]", "x"), ("a[1/2]", "x")], ["a[all 2] x", "a[0/2] x"]),
        ([("a[0/2]", "loss 1"), ("a[1/2]", "loss 2")], ["a[0/2] loss 1", "a[1/2] loss 2"]),
        ([("stranger", "x")], ["stranger x"]),
    ],
)
def test_folding(lines: list[tuple[str, str]], expected: list[str]) -> None:
    assert folded(*lines) == expected


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("xyz"))))
def test_each_rank_keeps_its_lines(said: list[tuple[int, str]]) -> None:
    out = folded(*((f"a[{rank}/4]", line) for rank, line in said))
    counted: Counter[tuple[int, str]] = Counter()
    for told in out:
        label, line = told.rsplit(" ", 1)
        inside = label.removeprefix("a[").removesuffix("]")
        if inside == "all 4":
            ranks = [0, 1, 2, 3]
        elif "/" in inside:
            ranks = [int(inside.partition("/")[0])]
        else:
            ranks = []
            for part in inside.removesuffix(" of 4").split(","):
                first, _, last = part.partition("-")
                ranks.extend(range(int(first), int(last or first) + 1))
        counted.update((rank, line) for rank in ranks)
    assert counted == Counter(said)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("actor[1/8 dp=1 tp=0]", "actor[1/8 dp=1 tp=0]"),
        ("actor[1/8]", "actor[1/8]"),
        ("actor[1/8 \x1b[2J]", "actor[1/8 \\x1b[2J]"),
        ("actor[2/8 dp=1]", "actor[1/8 dp=0]"),
        ("actor[1/9]", "actor[1/8 dp=0]"),
        ("critic[1/8]", "actor[1/8 dp=0]"),
        ("driver", "actor[1/8 dp=0]"),
        (None, "actor[1/8 dp=0]"),
    ],
)
def test_a_worker_names_its_coordinate_and_no_one_else(told: object, expected: str) -> None:
    assert relabelled("actor[1/8 dp=0]", told) == expected


@pytest.fixture
def printed() -> Iterator[list[Any]]:
    """What Ray's own printer is given."""
    dispatcher, seen = log_dispatcher(), list[Any]()
    before, dispatcher.handlers = dispatcher.handlers, []
    dispatcher.add_handler("ray_print_logs", seen.append)
    yield seen
    dispatcher.handlers = before


def test_many_sessions_on_one_connection_leave_one_printer(
    printed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray calls the printers in one thread for all lines: an error in it ends the output of workers for good."""
    of_a_stranger = {"lines": ["hello"], "is_err": False, "ip": "1.2.3.4", "pid": 1}
    for number in range(1_200):
        logs = WorkerLogs()
        logs.add_labels({("1.2.3.4", str(1_000 + number)): f"a{number}[0/1]"})
        logs.close()
    log_dispatcher().emit(of_a_stranger)
    assert [data["lines"] for data in printed] == [["hello"]]
    for worker in (1_000 + number, 999 + number):  # of the last session, and late ones of that before
        log_dispatcher().emit({**of_a_stranger, "pid": worker})
    logs.close()
    assert sorted(capsys.readouterr().out.split()) == ["a1198[0/1]", "a1199[0/1]", "hello", "hello"]
