"""A progress bar that counts samples, correct after a resume too."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from twinkle_remote import current_place
from twinkle_remote.backends.support import LINE_SECONDS, bar_class

if TYPE_CHECKING:
    from twinkle_data.cursor import Cursor
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Place


class Bar:
    """The progress of one epoch: epoch, position, samples per second, time left.

    It is a bar on a terminal and in a notebook, and a line every 10 seconds and at the end elsewhere.

    Args:
        at: Position at which it begins.
        samples_left: Samples that are left in the epoch; None for a stream, which has no length.

    Raises:
        ImportError: tqdm is not installed, and a bar would be shown.
    """

    def __init__(self, at: Cursor, samples_left: int | None) -> None:
        self._name = f"epoch {at.epoch}"
        self._position = self._began_at = at.position
        self._total = None if samples_left is None else at.position + samples_left
        self._began = self._shown = time.monotonic()
        bar = bar_class()
        # Samples before a resume count as done, but not for the rate.
        self._bar: Any = bar and bar(
            desc=self._name,
            total=self._total,
            initial=at.position,
            unit=" samples",
            unit_scale=True,
            dynamic_ncols=True,
        )

    def delivered(self, rows: int) -> None:
        """Advance the bar.

        Args:
            rows: Samples of a global batch.
        """
        self._position += rows
        if self._bar is not None:
            self._bar.update(rows)
        elif time.monotonic() - self._shown >= LINE_SECONDS:
            self._show()

    def close(self) -> None:
        """Stop updating the bar."""
        if self._bar is not None:
            self._bar.close()
        else:
            self._show()

    def _show(self) -> None:
        self._shown = time.monotonic()
        rate = (self._position - self._began_at) / max(self._shown - self._began, 1e-9)
        of = "" if self._total is None else f" of {self._total:,}"
        print(f"{self._name}: {self._position:,}{of} samples, {rate:,.1f} samples/s", file=sys.stderr)


def shows_here(device_mesh: DeviceMesh | None, place: Place | None = None) -> bool:
    """Whether the code of a place, or the running code, shows the bar; of those that read one loader the first does."""
    place = place or current_place()
    first = 0 if device_mesh is None else device_mesh.ranks[0]
    return place.alone or place.rank == first
