"""The progress of a stream on the standard error: a bar, or a line now and then where a bar does not suit."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from twinkle_remote.place import current_place
from twinkle_remote.sessions.telemetry.progress_output import LINE_SECONDS, bar_class

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.streams.telemetry.stream_stats import StreamStats

_BAR_SECONDS = 0.2


class ProgressBar:
    """Shows rows, rows a second, lag, and busy shares of stages and of the loop.

    Args:
        stats: The metrics of the stream.

    Raises:
        ImportError: tqdm is not installed, and a bar would be shown.
    """

    def __init__(self, stats: Callable[[], StreamStats]) -> None:
        self._stats = stats
        bar = bar_class()
        self._bar = bar and bar(desc="stream", unit=" rows", unit_scale=True, dynamic_ncols=True)
        self._pause = LINE_SECONDS if self._bar is None else _BAR_SECONDS
        self._shown_at = time.monotonic()

    def delivered(self) -> None:
        """The loop was given a batch."""
        if time.monotonic() - self._shown_at >= self._pause:
            self._show()

    def close(self) -> None:
        """Show the last metrics, and stop."""
        self._show()
        if self._bar is not None:
            self._bar.close()

    def _show(self) -> None:
        self._shown_at = time.monotonic()
        stats = self._stats()
        if self._bar is None:
            print(
                f"stream: {stats.rows:,} rows, {stats.rows_per_second:,.1f} rows/s, {status_line(stats)}",
                file=sys.stderr,
            )
        else:
            self._bar.set_postfix_str(status_line(stats), refresh=False)
            self._bar.n = stats.rows
            self._bar.refresh()


def status_line(stats: StreamStats) -> str:
    """Lag, and busy shares."""
    busy = [f"{name} {stage.busy:.0%}" for name, stage in stats.stages.items()]
    return (
        f"lag {stats.mean_lag:.1f} (worst {stats.worst_lag}), busy: {', '.join([*busy, f'loop {stats.training:.0%}'])}"
    )


def shows_progress() -> bool:
    """Whether this process shows a bar: of those that run the same, the first one does."""
    return current_place().rank == 0
