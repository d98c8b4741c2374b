"""Types that a served class names for type checkers only: they travel, from wherever its module imports them."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_http.registered import register_annotated
from twinkle_http.wire.decode import decode
from twinkle_http.wire.encode import encode
from twinkle_remote.values import TYPES

if TYPE_CHECKING:
    from pathlib import Path

SERVED = """
from __future__ import annotations
import typing
from typing import TYPE_CHECKING
from twinkle_remote import remote_class, remote_function
if TYPE_CHECKING:
    from {name}.flat import Flat, Renamed as Other
    from .near import Near
    from {name} import inner
    import {name}.dotted
    import {name}.second as short
    from there_is_no_such_module import Missing
    from {name}.broken import Broken
if typing.TYPE_CHECKING:
    from {name}.kept import Kept

@remote_class()
class Served:
    def __init__(self, near: Near | None = None, missing: Missing | None = None) -> None: ...
    @remote_function(dispatch="all", collect="first")
    def run(self, flat: Flat, others: dict[str, list[Other]], broken: Broken) -> tuple[inner.Inner, int]: ...
    @remote_function(dispatch="all", collect="first")
    def go(self, one: {name}.dotted.Dotted, two: short.Second | None) -> None: ...
    def own(self, kept: Kept) -> None: ...
"""
ONE = "from dataclasses import dataclass\n@dataclass\nclass {kind}:\n    x: int\n"
FLAT = """
from __future__ import annotations
from dataclasses import dataclass
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from {name}.field import Field
@dataclass
class Flat:
    field: Field | None
@dataclass
class Renamed:
    x: int
"""
TRAVEL = ["flat.Flat", "flat.Renamed", "field.Field", "near.Near", "inner.Inner", "dotted.Dotted", "second.Second"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    name = f"served_{abs(hash(tmp_path))}"
    folder = tmp_path / name
    folder.mkdir()
    texts = {"__init__": "", "served": SERVED, "flat": FLAT, "broken": "raise RuntimeError"}
    texts |= {
        kind.lower(): ONE.replace("{kind}", kind) for kind in ("Field", "Near", "Inner", "Dotted", "Second", "Kept")
    }
    for module, text in texts.items():
        (folder / f"{module}.py").write_text(text.replace("{name}", name))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_what_annotations_of_remote_functions_name_travels(package: str) -> None:
    register_annotated(importlib.import_module(f"{package}.served").Served)
    known = {name.removeprefix(f"{package}.") for name in TYPES.known() if name.startswith(package)}
    assert known == set(TRAVEL)
    assert f"{package}.kept" not in sys.modules  # no remote function names it
    for name in TRAVEL[1:]:
        module, _, kind = name.partition(".")
        value = getattr(sys.modules[f"{package}.{module}"], kind)(1)
        assert decode([encode(value, TYPES).to_bytes()], TYPES) == value


@dataclasses.dataclass(frozen=True)
class Cached:
    x: int

    @cached_property
    def double(self) -> int:
        return 2 * self.x


def test_what_was_computed_of_fields_does_not_hinder_a_value() -> None:
    TYPES.add(Cached)
    value = Cached(3)
    assert value.double == 6
    made = decode([encode(value, TYPES).to_bytes()], TYPES)
    assert made == value and made.double == 6
