"""Text commands no terminal, and stays itself where it would not."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_ray.telemetry.logs import printable

BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("loss 0.5\tgr\u00f6\u00dfer \u4f60\u597d \U0001f469\u200d\U0001f680", None),
        ("\x1b[1;31mERROR\x1b[0m done", "ERROR done"),
        ("\x1b]0;title\x07\x9b2J", "\\x1b]0;title\\x07\\x9b2J"),
        (" 10%|#  |\r 20%|## |\r", " 20%|## |"),
        ("\x1b\x1b[0m[2J", "\\x1b[2J"),
        ("abc\u202edcb\u2028", "abc\\u202edcb\\u2028"),
        ("", None),
    ],
)
def test_lines(line: str, shown: str | None) -> None:
    assert printable(line) == (line if shown is None else shown)


@given(st.text(st.characters(codec="utf-8")) | st.text(st.sampled_from("\x1b[]m0;\r\x07\x9b\u202ea")))
def test_no_line_has_controls(line: str) -> None:
    shown = printable(line)
    assert not [char for char in shown if unicodedata.category(char) == "Cc" and char != "\t"]
    assert not [char for char in shown if unicodedata.bidirectional(char) in BIDI]
    assert printable(shown) == shown
