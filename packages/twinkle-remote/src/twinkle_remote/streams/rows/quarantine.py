"""Quarantine of rows for which a stage failed at each attempt: they are named and set aside, unless too many are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from twinkle_remote.streams.rows.rows_info import QuarantinedRow

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("twinkle.remote")
_SHARE = 10  # one of so many rows may be set aside; more are a mistake in a stage, not in a row
_LEAST = 8


class Quarantine:
    """The rows that were set aside."""

    def __init__(self) -> None:
        self.rows: list[QuarantinedRow] = []

    def add(self, indices: Sequence[int], epoch: int, error: Exception, where: str, stage: str, finished: int) -> None:
        """Set rows aside, or raise the error where the stage fails for too many.

        Args:
            indices: Index in the dataset of each row.
            epoch: Their epoch.
            error: The last error.
            where: The rows, for messages.
            stage: Name of the stage.
            finished: Rows for which no stage failed.
        """
        text = f"{type(error).__name__}: {error}"
        self.rows += [QuarantinedRow(index, epoch, text) for index in indices]
        if not finished or len(self.rows) > max(_LEAST, finished // _SHARE):
            error.add_note(f"  while a stream made {where}; {len(self.rows)} rows failed, {finished} did not")
            raise error
        _log.warning("%s is set aside, because %s failed at each attempt: %s", where, stage, text)
