"""Loader processes: torch's, over steps; what was delivered counts, not what was read ahead."""

from __future__ import annotations

import os
import pickle
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.utils.data import default_collate, get_worker_info

from twinkle_data import BadSampleError, Batch, DataLoader

if TYPE_CHECKING:
    from pathlib import Path

ORDER = [list(range(start, start + 4)) for start in range(0, 24, 4)]


class Numbers:
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        return index


class Deadly(Numbers):
    """Kills the process that reads number 13, while a file is there."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __getitem__(self, index: int) -> int:
        if index == 13 and self.mark.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Unreadable(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise ValueError(f"nothing at {index}")
        return index


def who(batch: Batch[int]) -> tuple[int, Batch[int]]:
    return os.getpid(), batch


@pytest.mark.parametrize("workers", [1, 2])
def test_the_number_of_processes_changes_nothing(workers: int) -> None:
    loader = DataLoader(Numbers(), batch_size=4, shuffle=True, seed=2, num_workers=workers, drop_last=False)
    plain = DataLoader(list(range(24)), batch_size=4, shuffle=True, seed=2)
    for batch, expected in zip(loader, plain, strict=True):
        assert (list(batch), batch.indices, batch.position) == (list(expected), list(expected), expected.position)
        assert loader.position == plain.position


def test_processes_that_are_not_forked(fork_server: None) -> None:
    loader: DataLoader[Any] = DataLoader(
        Numbers, batch_size=4, num_workers=1, multiprocessing_context="forkserver", collate_fn=default_collate
    )
    assert torch.cat(list(loader)).tolist() == list(range(24))


def test_a_loader_travels_with_its_position() -> None:
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1)
    next(iter(loader))
    assert [list(batch) for batch in pickle.loads(pickle.dumps(loader))] == ORDER[1:]


def test_processes_that_persist_read_over_the_end_of_an_epoch() -> None:
    loader: DataLoader[Any] = DataLoader(
        Numbers(), batch_size=4, num_workers=1, persistent_workers=True, collate_fn=who
    )
    first = {pid for pid, _ in loader}
    for pid, batch in loader:
        assert pid in first
        if batch.position == 8:
            break
    again = list(loader)
    assert {pid for pid, _ in again} == first
    assert [list(batch) for _, batch in again] == ORDER[3:]


def test_a_killed_process_ends_the_run_which_resumes_exactly(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    mark.touch()
    loader = DataLoader(Deadly(mark), batch_size=4, num_workers=1, prefetch_factor=1)
    told: list[int] = []
    with pytest.raises(RuntimeError, match=r"worker .*(killed|exited)"):  # noqa: PT012 - what it delivered counts
        for batch in loader:
            told += batch
    assert told == list(range(loader.position))
    mark.unlink()
    assert told + [row for batch in loader for row in batch] == list(range(24))


def test_errors_come_out_with_their_trace() -> None:
    loader = DataLoader(Unreadable(), batch_size=4, num_workers=1)
    told: list[int] = []
    with pytest.raises(BadSampleError, match=r"(?s)sample 9 .*nothing at 9"):  # noqa: PT012 - as above
        for batch in loader:
            told += batch
    assert told == list(range(8)) and loader.position == 8


@pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # there is no accelerator
def test_torchs_options_are_torchs() -> None:
    started: DataLoader[Any] = DataLoader(
        Numbers(), batch_size=24, num_workers=1, worker_init_fn=_note, collate_fn=_noted, timeout=100
    )
    assert list(started) == [0]
    with pytest.raises(ValueError, match="timeout"):
        DataLoader(Numbers(), batch_size=4, num_workers=1, timeout=-1)
    batch = next(iter(DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)))
    assert (torch.stack(list(batch)).tolist(), batch.indices) == ([0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3])


def _note(worker: int) -> None:
    os.environ["TWINKLE_TEST_WORKER"] = str(worker)


def _noted(batch: Batch[int]) -> int:
    info: Any = get_worker_info()
    assert info.id == int(os.environ["TWINKLE_TEST_WORKER"])
    return int(info.id)
