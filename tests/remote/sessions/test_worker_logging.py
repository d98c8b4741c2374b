"""Workers that are processes show what the program's logging asks for."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from twinkle_remote.protocol.defaults import LoggingDefaults
from twinkle_remote.sessions.worker_logging import logging_here, take_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A root without handlers, and a logger "mine" without a level."""
    found = logging.getLogger()
    monkeypatch.setattr(found, "handlers", [])
    level, mine = found.level, logging.getLogger("mine").level
    found.setLevel(logging.WARNING)
    yield found
    found.setLevel(level)
    logging.getLogger("mine").setLevel(mine)


def test_nothing_is_told_without_handlers_of_the_standard_streams(root: logging.Logger, tmp_path: object) -> None:
    root.handlers = []  # pytest has given it some of its own
    root.setLevel(logging.INFO)
    assert logging_here() is None
    with closing(logging.FileHandler(f"{tmp_path}/log")) as file:
        root.addHandler(file)
        assert logging_here() is None
    root.handlers = [logging.StreamHandler(sys.stderr)]
    root.setLevel(logging.WARNING)
    assert logging_here() is None or "" not in dict(logging_here().levels)  # type: ignore[union-attr]  # not None, by the first part


def test_levels_and_format_are_told(root: logging.Logger) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s|%(message)s"))
    root.addHandler(handler)
    logging.getLogger("mine").setLevel(logging.DEBUG)
    told = logging_here()
    assert told is not None and ("mine", logging.DEBUG) in told.levels and told.formatter is handler.formatter
    root.setLevel(logging.INFO)
    told = logging_here()
    assert told is not None and ("", logging.INFO) in told.levels


def test_a_worker_shows_them(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    root.handlers = []  # as above
    take_logging(LoggingDefaults((("mine", logging.INFO),), 0, logging.Formatter("%(name)s|%(message)s")))
    logging.getLogger("mine").info("step done")
    logging.getLogger("other").info("not asked for")
    assert capsys.readouterr().err == "mine|step done\n"
    own = root.handlers
    take_logging(LoggingDefaults((("", logging.DEBUG),), 0, None))
    assert root.handlers == own and root.level == logging.DEBUG
