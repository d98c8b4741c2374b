"""The rule that a stage returns one row for each row that it is given."""

from __future__ import annotations

from twinkle_remote.errors import CollectError


def wrong_rows(made: int | None, given: int, name: str, where: str = "") -> CollectError:
    """The error of a stage that returned another number of rows.

    Args:
        made: Rows of the result; None if it has none.
        given: Rows of the argument.
        name: Name of the stage.
        where: Which rows these are, if that is known.
    """
    return CollectError(
        f"{name} returned {'a value without rows' if made is None else f'{made} rows'} for {given} rows"
        f"{where and f' ({where})'}: a stage of a stream returns one row for each row that it is given; a row may be a "
        "group of answers"
    )
