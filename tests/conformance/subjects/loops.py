"""Components that are iterated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.subjects.echo import data_rank

from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle_mesh import DeviceMesh


@remote_class()
class Numbers:
    """An iterator of its own: its `__iter__` only returns it."""

    def __init__(self, stop: int) -> None:
        self.at = 0
        self.stop = stop

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> list[int]:
        if self.at >= self.stop:
            raise StopIteration
        self.at += 1
        return [10 * self.at + data_rank()]

    def __len__(self) -> int:
        return self.stop - self.at


@remote_class()
class Restarting(Numbers):
    """An iterator whose `__iter__` begins again."""

    def __iter__(self) -> Restarting:
        self.at = 0
        return self


@remote_class()
class Epochs(Numbers):
    """An iterator that is ready for the next epoch at the end of one."""

    def __next__(self) -> list[int]:
        if self.at >= self.stop:
            self.at = 0
            raise StopIteration
        return super().__next__()


@remote_class()
class Yielding:
    """A generator that goes on where the last one was left."""

    def __init__(self, stop: int) -> None:
        self.at = 0
        self.stop = stop

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < self.stop:
            self.at += 1
            yield [self.at]


@remote_class(execute="first")
class Source:
    """Lives on the first worker alone."""

    def __init__(self, device_mesh: DeviceMesh | None = None) -> None:
        self.mesh = device_mesh

    @remote_function()
    def where(self) -> tuple[int | None, int]:
        """Rank and group size."""
        return current_worker().rank, current_worker().world_size

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield {"rows": [1, 2, 3]}
        yield {"rows": [4]}
