"""The types that a stub may name: those of Python, numpy and torch that travel, and those that it defines itself."""

from __future__ import annotations

import ast
import keyword
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

_BUILTINS = "int float str bool bytes bytearray complex object list tuple dict set frozenset range slice"
_ABCS = """Sequence MutableSequence Mapping MutableMapping Iterable Iterator Collection Generator Set MutableSet
    AsyncIterator AsyncIterable AsyncGenerator Awaitable"""
_STANDARD = """datetime.date datetime.time datetime.datetime datetime.timedelta decimal.Decimal fractions.Fraction
    uuid.UUID DeviceMesh"""
_DTYPES = """bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128
    generic number integer floating inexact"""
_USED = """numpy torch datetime decimal fractions uuid enum twinkle DeviceMesh Any Literal NamedTuple NoReturn
    TYPE_CHECKING dataclass field property BaseException type"""

BUILTINS = frozenset(_BUILTINS.split())
ABCS = frozenset(_ABCS.split())
STANDARD = frozenset(_STANDARD.split())
DTYPES = frozenset(_DTYPES.split())
LIBRARIES = frozenset(
    {"numpy.ndarray", "numpy.dtype", "torch.Tensor", "torch.dtype", *(f"numpy.{name}" for name in DTYPES)}
)
RESERVED = frozenset({*BUILTINS, *ABCS, *_USED.split()})
"""Names that a stub uses itself."""
_MOST_CHARACTERS = 2000


def is_name(text: object) -> bool:
    """Whether a text is a name of Python that is no keyword, and not private to a class."""
    return isinstance(text, str) and text.isascii() and text.isidentifier() and not keyword.iskeyword(text)


def safe_type(text: object, defined: Collection[str]) -> str | None:
    """The text of a type again, if it names safe types only; None otherwise.

    Args:
        text: What a server says.
        defined: Names of the classes that the stub defines.
    """
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        return ast.unparse(tree) if _is_safe(tree, defined) else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def type_arguments(text: str) -> list[str]:
    """The arguments of a generic type that is safe, as text."""
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Subscript)
    parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    return [ast.unparse(part) for part in parts]


def safe_literal(text: object) -> str | None:
    """The text of a literal again; None for anything else."""
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        return None
    try:
        value = ast.literal_eval(text)
        shown = repr(value)
        return shown if ast.literal_eval(shown) == value else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _is_safe(node: ast.expr, defined: Collection[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in BUILTINS or node.id in ABCS or node.id in ("Any", "DeviceMesh") or node.id in defined
    if isinstance(node, ast.Attribute):
        dotted = ast.unparse(node)
        return dotted in STANDARD or dotted in LIBRARIES
    if isinstance(node, ast.Constant):
        return node.value is None or node.value is Ellipsis
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr) and _is_safe(node.left, defined) and _is_safe(node.right, defined)
    if isinstance(node, ast.Tuple):
        return all(_is_safe(one, defined) for one in node.elts)
    if isinstance(node, ast.Subscript):
        if isinstance(node.value, ast.Name) and node.value.id == "Literal":
            return _is_literal(node.slice)
        return isinstance(node.value, ast.Name | ast.Attribute) and all(
            _is_safe(one, defined) for one in (node.value, node.slice)
        )
    return False


def _is_literal(node: ast.expr) -> bool:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    plain = [part.operand if isinstance(part, ast.UnaryOp) else part for part in parts]
    return all(
        isinstance(part, ast.Constant) and (part.value is None or isinstance(part.value, str | int | bytes))
        for part in plain
    )
