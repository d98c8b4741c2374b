"""Progress of the start of the workers, shown on the standard error where it takes long."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.support import LINE_SECONDS, bar_class

if TYPE_CHECKING:
    from collections.abc import Mapping

QUIET_SECONDS = 5.0
"""A start that is over by then shows no bar; the first line comes after `LINE_SECONDS`."""


class StartProgress:
    """A bar on a terminal and in a notebook, and a line every 10 seconds elsewhere.

    Args:
        total: Number of workers.
        shown: Whether anything is shown.
    """

    def __init__(self, total: int, *, shown: bool = True) -> None:
        self._total, self._shown = total, shown and sys.stderr is not None
        self._began = time.monotonic()
        self._next_line = self._began + LINE_SECONDS
        self._bar: Any = None

    @property
    def due(self) -> bool:
        """Whether the start takes long enough to be shown."""
        return self._shown and time.monotonic() - self._began >= QUIET_SECONDS

    def waiting(self, why: str) -> None:
        """Show that no worker is started yet.

        Args:
            why: What the start waits for.
        """
        self._show(0, why)

    def ready(self, missing: Mapping[str, tuple[int, int]]) -> None:
        """Show how many workers are ready.

        Args:
            missing: For each group that is not ready, the workers that are missing, and all of its workers.
        """
        count = self._total - sum(late for late, _ in missing.values())
        self._show(count, "missing: " + ", ".join(f"{name} {late} of {size}" for name, (late, size) in missing.items()))

    def close(self) -> None:
        """Stop showing."""
        if self._bar is not None:
            self._bar.close()
        self._shown = False

    def _show(self, count: int, what: str) -> None:
        if not self.due:
            return
        if self._bar is None and not self._open():
            now = time.monotonic()
            if now >= self._next_line:
                self._next_line = now + LINE_SECONDS
                print(f"twinkle: workers ready: {count} of {self._total}; {what}", file=sys.stderr, flush=True)
            return
        self._bar.n = count
        self._bar.set_postfix_str(what, refresh=False)
        self._bar.refresh()

    def _open(self) -> bool:
        """Begin a bar; False where lines suit better, or tqdm is not installed."""
        try:
            kind = bar_class()
        except ImportError:
            kind = None
        if kind is not None:
            self._bar = kind(desc="workers ready", total=self._total, unit=" workers", dynamic_ncols=True)
        return kind is not None
