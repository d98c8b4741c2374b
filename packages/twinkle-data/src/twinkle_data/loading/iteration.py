"""Iteration over a loader: the rest of an epoch, and the iterator of a `for` loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from twinkle_data.loading.bar import Bar, shows_here

if TYPE_CHECKING:
    from twinkle_data.loading.progress import Progress, Run

B = TypeVar("B")


class EpochIteration(Generic[B]):
    """Delivers the rest of an epoch.

    Args:
        progress: Progress of the loader.
    """

    def __init__(self, progress: Progress[B]) -> None:
        self.at = progress.position.cursor
        self._progress = progress
        self._epoch = self.at.epoch
        self._run: Run | None = None
        self._bar: Bar | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has delivered the last batch of its epoch."""
        return self.at.epoch != self._epoch

    def step(self) -> B:
        """Deliver the next batch."""
        progress = self._progress
        with progress.guard:
            if self.is_over:
                self._run, progress.owed = None, False
                self._close_bar()
                raise StopIteration
            if self._run is None:
                self._run = progress.run()
                if progress.bar and shows_here(progress.mesh, progress.place()):
                    self._bar = Bar(self.at, progress.engine.plan.samples_left(self.at))
            delivery = next(self._run.pipeline, None)
            assert delivery is not None, f"the pipeline ended before the epoch did, at {self.at}"
            before = self.at
            try:
                return progress.deliver(delivery)
            finally:
                self.at = progress.position.cursor
                if self._bar is not None and self.at != before:
                    self._bar.delivered(delivery.info.rows)

    def _close_bar(self) -> None:
        bar, self._bar = self._bar, None
        if bar is not None:
            bar.close()

    def follow(self) -> None:
        """Move to the position that `next(loader)` has reached meanwhile."""
        if self._progress.position.cursor != self.at:
            self.at, self._run = self._progress.position.cursor, None


class Loop(Generic[B]):
    """The iterator of a `for` loop.

    Args:
        progress: Progress of the loader.
    """

    def __init__(self, progress: Progress[B]) -> None:
        self._progress = progress
        self._epoch = EpochIteration(progress)
        self._moves = progress.moves

    def __iter__(self) -> Loop[B]:
        return self

    def __next__(self) -> B:
        progress = self._progress
        if progress.moves != self._moves:
            raise RuntimeError(
                f"this loop stands at {self._epoch.at} and its loader at {progress.position.cursor}: another loop, "
                "set_epoch or load_state_dict moved it; start a new loop"
            )
        self._epoch.follow()
        before = self._epoch.at
        try:
            return self._epoch.step()
        finally:
            if self._epoch.at != before:
                self._moves = progress.moves = progress.moves + 1
