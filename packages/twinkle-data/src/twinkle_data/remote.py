"""A loader on a group of workers: a DataLoader for each data rank, driven by one loop on the driver.

A step is a call without rows. What it reads stays on the workers and goes from there to those that use it; the driver
moves positions only. It asks for some steps ahead, and counts only those that its loop got.
"""

from __future__ import annotations

import traceback
from collections import deque
from copy import copy
from typing import TYPE_CHECKING, Any

from twinkle_data.ranks import check_same
from twinkle_data.state import Position, write_state
from twinkle_remote import current_worker, is_handle, remote_class, remote_function, submit
from twinkle_remote.backends.support import call_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from twinkle_data.batch import BatchInfo
    from twinkle_data.loader import DataLoader
    from twinkle_data.state import Identity
    from twinkle_mesh import DeviceMesh
    from twinkle_remote import Lazy


def _of_readers(results: list[Any], mesh: DeviceMesh | None) -> list[Any]:
    """The answers of the ranks that read, in data order."""
    return results if mesh is None else [results[rank] for rank in mesh.collect_ranks]


class GroupLoader:
    """The workers' side. Of the ranks that see the same rows one reads."""

    def __init__(self, options: DataLoader[Any], dataset: Any) -> None:
        self._options, self._dataset = options, dataset
        self._loader: DataLoader[Any] | None = None
        self._loop: Iterator[Any] = iter(())
        self._report: Any = None

    @remote_function(dispatch="all", collect=_of_readers, lazy_collect=False)
    def open(self) -> Any:
        """Open the dataset; returns the identity of each rank that reads."""
        context = current_worker()
        if context.mesh is not None and context.rank not in context.mesh.collect_ranks:
            return None
        self._loader = self._options.opened(self._dataset)
        self._loader.compares = True
        return self._loader.identity

    @remote_function(dispatch="all", collect="flatten")
    def read(self, state: dict[str, Any] | None) -> Any:
        """This rank's rows of the next step, or of the first one after a state; nothing after the end of an epoch."""
        loader = self._loader
        if loader is None:
            return None
        self._report = None
        try:
            if state is not None:
                loader.load_state_dict(state)
                self._loop = iter(loader)
            batch = next(self._loop, None)
        except Exception as error:  # it is raised where the loop takes this step, or nowhere
            error.add_note("".join(traceback.format_exception(error)))
            self._report, batch = error, None
        else:
            self._report = None if batch is None else loader.info, loader.at, loader.first_rows
        return batch

    @remote_function(dispatch="all", collect=_of_readers)
    def report(self) -> Any:
        """Of each rank that reads the error of the last step, or its info (None after the end), position and digest."""
        return self._report

    @remote_function(dispatch="all", collect=_of_readers, lazy_collect=False)
    def left(self, state: dict[str, Any]) -> Any:
        """The steps from a state to the end of its epoch, on each rank that reads."""
        if self._loader is None:
            return None
        loader = copy(self._loader)  # the loop of this one goes on
        loader.load_state_dict(state)
        return len(loader)


@remote_class(execute="all")
class RankLoader(GroupLoader):
    """A loader on each data rank of a mesh."""


@remote_class(execute="first")
class FirstRankLoader(GroupLoader):
    """A loader of global batches on the first worker."""


class OnGroup:
    """The driver's side: asks the loaders of a group for steps, and compares what their datasets are."""

    def __init__(self, workers: GroupLoader, ahead: int) -> None:
        self._workers, self._ahead = workers, ahead
        identities: Any = workers.open()
        self.identity: Identity = identities[0]
        for rank, other in enumerate(identities):
            check_same(self.identity._asdict(), other._asdict(), (0, rank))

    def left(self, at: Position) -> int:
        """The steps from a position to the end of its epoch."""
        found: Any = self._workers.left(write_state(self.identity, at))
        return int(found[0])

    def run(self, at: Position) -> Generator[tuple[BatchInfo, Any, Position], None, Position]:
        """The steps from a position to the end of its epoch: their rows, lazily; returns the position after it."""
        asked: deque[tuple[Lazy[Any], Lazy[Any]]] = deque()
        state: dict[str, Any] | None = write_state(self.identity, at)
        while True:
            while len(asked) <= self._ahead:
                asked.append((submit(self._workers.read, state), submit(self._workers.report)))
                for lazy in asked[-1]:  # nobody has to ask for what the loop does not take
                    call_of(lazy).prefetched = True
                state = None
            batch, report = asked.popleft()
            reports: list[Any] = report.result()
            for found in reports:
                if isinstance(found, BaseException):
                    raise found
            info, after, first = reports[0]
            for rank, (_, _, other) in enumerate(reports):
                check_same({"first rows": first}, {"first rows": other}, (0, rank))
            if info is None:
                return Position(*after)
            yield (
                info._replace(
                    indices=[index for own, _, _ in reports for index in own.indices],
                    valid=[flag for own, _, _ in reports for flag in own.valid],
                ),
                batch,
                after,
            )


def open_on_group(loader: DataLoader[Any], dataset: Any, group: str, ahead: int) -> OnGroup | None:
    """Open loaders like this one on a group; None where its components live in this process, and it reads itself."""
    mesh = loader.device_mesh
    placed: Any = {"remote_group": group} if mesh is None else {"remote_group": group, "device_mesh": mesh}
    kind: type[GroupLoader] = FirstRankLoader if mesh is None else RankLoader
    workers = kind(loader, dataset, **placed)
    return OnGroup(workers, ahead) if is_handle(workers) else None
