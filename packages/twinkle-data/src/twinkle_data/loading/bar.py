"""A progress bar that counts samples, correct after a resume too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from twinkle_mesh import current_rank

if TYPE_CHECKING:
    from twinkle_data.cursor import Cursor
    from twinkle_mesh import DeviceMesh


class Bar:
    """A progress bar for one epoch: epoch, position, samples per second, time left.

    Args:
        at: Position at which it begins.
        samples_left: Samples that are left in the epoch; None for a stream, which has no length.

    Raises:
        ImportError: tqdm is not installed.
    """

    def __init__(self, at: Cursor, samples_left: int | None) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError as error:
            raise ImportError("progress=True needs tqdm: pip install 'twinkle-data[progress]'") from error
        # Samples before a resume count as done, but not for the rate.
        self._bar: Any = tqdm(
            desc=f"epoch {at.epoch}",
            total=None if samples_left is None else at.position + samples_left,
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
        self._bar.update(rows)

    def close(self) -> None:
        """Stop updating the bar."""
        self._bar.close()


def shows_here(device_mesh: DeviceMesh | None) -> bool:
    """Whether this process shows the bar; one process of a run does."""
    rank = current_rank()
    if rank is None:
        rank = int(os.environ.get("RANK", "0"))
        return rank == 0
    return device_mesh is None or rank == device_mesh.ranks[0]
