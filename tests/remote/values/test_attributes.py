"""Whatever a type makes of its own copies: a share and a joined value are objects of their own, and the whole stays."""

from __future__ import annotations

import copy
from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field, make_dataclass
from random import Random
from typing import Any

import pytest

from twinkle_remote.values.columns import with_only, with_parts
from twinkle_remote.values.join import join
from twinkle_remote.values.rows import take


def _itself(self: Any, *_: Any) -> Any:
    return self


def _raises(self: Any, *_: Any) -> Any:
    raise RuntimeError("this type has no copies")


def _shares(self: Any) -> Any:
    twin = object.__new__(type(self)) if not isinstance(self, dict) else dict.__new__(type(self))
    twin.__dict__ = self.__dict__
    return twin


def _forgets(self: Any) -> dict[str, Any]:
    return {}


def _the_one(kind: Any, *_: Any, **__: Any) -> Any:
    if "one" not in vars(kind):
        kind.one = dict.__new__(kind) if issubclass(kind, dict) else object.__new__(kind)
    return kind.one


HABITS: dict[str, dict[str, Any]] = {
    "none": {},
    "copies are itself": {"__copy__": _itself, "copy": _itself},
    "copies share": {"__copy__": _shares},
    "no copies": {"__copy__": _raises, "__reduce_ex__": _raises},
    "a singleton": {"__new__": _the_one},
    "a state that forgets": {"__getstate__": _forgets},
}
BASES: dict[str, type] = {"dict": dict, "ordered": OrderedDict, "default": defaultdict, "user": UserDict}


def _made(kind: str, habit: str, columns: dict[str, list[int]]) -> Any:
    members = dict(HABITS[habit])
    if kind == "dataclass":
        return make_dataclass("Own", [(name, list) for name in columns], namespace=members)(**columns)
    if kind == "default":
        return type("Own", (BASES[kind],), members)(list, columns)
    return type("Own", (BASES[kind],), members)(columns)


def _plain(value: Any) -> dict[str, list[int]]:
    return dict(value.items()) if isinstance(value, dict | UserDict) else dict(value.__dict__)


@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.parametrize("kind", ["dataclass", *BASES])
def test_the_rows_of_a_whole_are_there_once_in_its_shares(kind: str, habit: str) -> None:
    choose = Random(f"{kind} {habit}")
    for _ in range(10):
        rows = choose.randint(0, 6)
        columns = {name: [choose.randint(0, 9) for _ in range(rows)] for name in ("ids", "other")}
        value, before = _made(kind, habit, columns), copy.deepcopy(columns)
        cuts = sorted(choose.randint(0, rows) for _ in range(3))
        ends = list(zip([0, *cuts], [*cuts, rows], strict=True))
        shares = [take(value, start, stop) for start, stop in ends]
        for share, (start, stop) in zip(shares, ends, strict=True):
            assert type(share) is type(value)
            assert _plain(share) == {name: own[start:stop] for name, own in before.items()}
        assert _plain(join(shares)) == before
        assert _plain(with_parts(value, [[0], [1]])) == {"ids": [0], "other": [1]}
        if kind != "dataclass":
            assert _plain(with_only(value, ["other"])) == {"other": before["other"]}
        assert _plain(value) == before


@dataclass(slots=True)
class Slots:
    ids: list[int]
    names: list[str] = field(default_factory=list)

    __copy__ = _itself


def test_slots_are_attributes_too() -> None:
    value = Slots([1, 2], ["a", "b"])
    assert (take(value, 1, 2), value) == (Slots([2], ["b"]), Slots([1, 2], ["a", "b"]))
