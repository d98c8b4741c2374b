"""Loader processes that are killed or stopped at any time: nothing is lost or repeated, and nobody waits for ever."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.loading.plain_numbers import ORDER, Numbers, who

from twinkle_data import Batch, DataLoader, LoaderProcessError

pytestmark = pytest.mark.usefixtures("no_process_is_left")


class Deadly(Numbers):
    """Kills, or stops, the process that reads one index, as often as there are marks left.

    Args:
        folder: Holds one file for each death that is still to come.
        sent: The signal.
        index: The deadly index.
    """

    def __init__(self, folder: Path, sent: int, index: int = 13) -> None:
        super().__init__()
        self.folder = folder
        self.sent = sent
        self.index = index

    def __getitem__(self, index: int) -> int:
        if index == self.index:
            for mark in sorted(self.folder.iterdir()):
                mark.unlink()
                os.kill(os.getpid(), self.sent)
                threading.Event().wait(30)
        return index


def deaths(folder: Path, count: int) -> Path:
    for number in range(count):
        (folder / str(number)).touch()
    return folder


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_loses_and_repeats_nothing(tmp_path: Path, sent: int) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Deadly(deaths(tmp_path, 1), sent), batch_size=4, num_workers=2)
    assert [list(batch) for batch in loader] == ORDER
    assert not list(tmp_path.iterdir())


def test_a_death_after_a_jump_to_the_same_position_repeats_nothing(tmp_path: Path) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 1), signal.SIGKILL, 21), batch_size=4, num_workers=1
    )
    batches = [list(next(loader))]
    loader.load_state_dict(loader.state_dict())
    batches += [list(next(loader)) for _ in range(9)]
    assert batches == ORDER
    loader.close()


@pytest.mark.slow
def test_a_stopped_process_is_given_up(tmp_path: Path) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 1), signal.SIGSTOP), batch_size=4, num_workers=1, timeout_s=1.0
    )
    assert [list(batch) for batch in loader] == ORDER


def test_a_death_does_not_strike_the_main_thread(tmp_path: Path) -> None:
    own: Any = torch.utils.data.DataLoader([1, 2], num_workers=1)  # type: ignore[arg-type]  # a list is a dataset
    assert len(list(own)) == 2, "torch's SIGCHLD handler is there from here on"
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 3), signal.SIGKILL), batch_size=4, num_workers=1
    )
    seen: list[list[int]] = []
    reading = threading.Thread(target=lambda: seen.extend(list(batch) for batch in loader))
    reading.start()
    reading.join(60)
    assert seen == ORDER


@pytest.mark.parametrize(("workers", "ahead", "restarts"), [(1, 4, 1), (2, 3, 1), (2, 1, 2)])
def test_a_deadly_batch_takes_none_before_it_along(tmp_path: Path, workers: int, ahead: int, restarts: int) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 9), signal.SIGKILL),
        batch_size=4,
        num_workers=workers,
        prefetch_factor=ahead,
        restarts=restarts,
    )
    delivered = []
    with pytest.raises(LoaderProcessError, match=f"{restarts + 1} times .*position 12"):  # noqa: PT012  batches before the lost one are counted
        for batch in loader:
            delivered.append(list(batch))
    assert delivered == ORDER[:3]


def test_restarts_are_bounded(tmp_path: Path) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 9), signal.SIGKILL), batch_size=4, num_workers=1, restarts=1
    )
    loop = iter(loader)
    assert [list(next(loop)) for _ in range(3)] == ORDER[:3]
    with pytest.raises(LoaderProcessError, match=r"2 times .*position 12.*13"):
        next(loop)
    assert loader.position == 12
    for mark in tmp_path.iterdir():
        mark.unlink()
    assert [list(batch) for batch in loader] == ORDER[3:]


def test_a_process_killed_from_outside(tmp_path: Path) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=4, num_workers=1, collate_fn=who)
    pid, first = next(loader)
    os.kill(pid, signal.SIGKILL)
    rest = [list(batch) for _, batch in [next(loader) for _ in range(9)]]
    assert [list(first), *rest] == ORDER


KILLED = """
import os, signal, time
from twinkle_data import DataLoader

class Rows:
    def __len__(self): return 64
    def __getitem__(self, index):
        if index >= 8: time.sleep(300)
        return os.getpid()

if __name__ == "__main__":
    loader = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="{method}")
    print(*{*next(loader), *next(loader)}, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_process_outlives_a_killed_program(tmp_path: Path, method: str) -> None:
    """Not even in the middle of a sample: a forked one holds the program's connections, and its peers wait."""
    program = tmp_path / "program.py"
    program.write_text(KILLED.replace("{method}", method))
    told = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=600)
    pids = told.stdout.split()
    assert len(pids) == 2, told.stderr
    until = time.monotonic() + 60
    while left := [pid for pid in pids if _runs(pid)]:
        assert time.monotonic() < until, left
        threading.Event().wait(0.05)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
