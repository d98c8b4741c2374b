"""Each error text on the page of questions is one that the source raises or logs."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TEXTS = re.findall(r"^### `(.*)`$", (ROOT / "docs" / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
OF_NUMPY = "assignment destination is read-only"


def written(node: ast.AST) -> str | None:
    """Return a text of the source with … in place of each value; None for what is no text."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(written(part) or "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = written(node.left), written(node.right)
        return None if left is None and right is None else f"{'…' if left is None else left}{right or '…'}"
    return None


def texts() -> Iterator[str]:
    for folder in (ROOT / "src", *ROOT.glob("packages/*/src")):
        for path in folder.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if text := written(node):
                    yield text


@cache
def source() -> str:
    return "\n".join(set(texts())).replace("%s", "…")


def test_there_are_texts() -> None:
    assert len(TEXTS) >= 25


@pytest.mark.parametrize("text", [text for text in TEXTS if text != OF_NUMPY])
def test_a_text_is_in_the_source(text: str) -> None:
    assert text in source()


def test_the_text_of_numpy() -> None:
    array = np.zeros(1)
    array.flags.writeable = False
    with pytest.raises(ValueError, match=OF_NUMPY):
        array[0] = 1.0
