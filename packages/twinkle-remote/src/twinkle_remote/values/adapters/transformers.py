"""Columns of a tokenizer's `BatchEncoding`: its items, and the encodings that map tokens to characters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENCODINGS = "encodings of the tokenizer"


def columns(value: Any) -> Mapping[Any, object]:
    """The items, and one encoding for each text where the tokenizer keeps them.

    The tokens of a single text are therefore not rows: their number differs from the one encoding.
    """
    items = dict(value.data)
    return items if value.encodings is None else {**items, _ENCODINGS: value.encodings}


def with_items(value: Any, items: Mapping[Any, object]) -> Any:
    """A BatchEncoding of these items."""
    data = dict(items)
    kind = cast("Any", type(value))
    return kind(data, encoding=data.pop(_ENCODINGS, None), n_sequences=value.n_sequences)
