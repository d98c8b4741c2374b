"""Loader processes: started any way, killed at any time, never waited for without end."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.utils.data import default_collate

from twinkle_data import BadSampleError, Batch, DataLoader, LoaderProcessError
from twinkle_data.loading.processes import ProcessOptions
from twinkle_mesh import DeviceMesh, use_rank


class Numbers:
    """Plain numbers, pickled by value."""

    def __init__(self, length: int = 40) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


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


def build() -> Numbers:
    return Numbers(24)


ORDER = [list(range(start, start + 4)) for start in range(0, 40, 4)]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    import multiprocessing

    before = {process.pid for process in multiprocessing.active_children()}
    yield
    left = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert not left


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_number_of_processes_changes_nothing(workers: int) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Numbers(), batch_size=4, shuffle=True, seed=2, num_workers=workers, tail="pad"
    )
    plain: DataLoader[Batch[int]] = DataLoader(list(range(40)), batch_size=4, shuffle=True, seed=2)
    for batch, expected in zip(loader, plain, strict=True):
        assert (list(batch), batch.indices, batch.position) == (list(expected), list(expected), expected.position)
        assert loader.position == plain.position, "what was delivered counts, not what was read ahead"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_start_methods(method: str) -> None:
    loader: DataLoader[Any] = DataLoader(
        build, batch_size=4, num_workers=1, multiprocessing_context=method, collate_fn=default_collate
    )
    assert torch.cat(list(loader)).tolist() == list(range(24))


def test_a_loader_travels_with_its_position() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=True)
    next(loader)
    copy = pickle.loads(pickle.dumps(loader))
    loader.close()
    assert [list(batch) for batch in copy] == ORDER[1:]
    copy.close()


def test_processes_that_persist_read_over_the_end_of_an_epoch() -> None:
    loader: DataLoader[Any] = DataLoader(
        Numbers(), batch_size=4, num_workers=1, persistent_workers=True, collate_fn=_who
    )
    first = {pid for pid, _ in loader}
    for pid, batch in loader:
        assert pid in first
        if batch.position == 8:
            break
    assert loader.state_dict()["epoch"] == 1
    again = list(loader)
    assert {pid for pid, _ in again} == first
    assert [list(batch) for _, batch in again] == ORDER[3:]
    loader.set_epoch(7)
    assert {pid for pid, _ in loader} != first
    loader.close()


def _who(batch: Batch[int]) -> tuple[int, Batch[int]]:
    return os.getpid(), batch


@pytest.mark.parametrize("persistent", [False, True])
def test_close_ends_the_processes_of_a_loop_that_is_not_over(persistent: bool) -> None:
    import multiprocessing

    before = {process.pid for process in multiprocessing.active_children()}
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, persistent_workers=persistent)
    loop = iter(loader)
    batches = [list(next(loop))]
    loader.close()
    assert {process.pid for process in multiprocessing.active_children()} <= before
    batches += [list(batch) for batch in loop]
    assert batches == ORDER
    loader.close()


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_process_loses_and_repeats_nothing(tmp_path: Path, sent: int) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Deadly(deaths(tmp_path, 1), sent), batch_size=4, num_workers=2)
    assert [list(batch) for batch in loader] == ORDER
    assert not list(tmp_path.iterdir())


class Collecting(list[int]):
    def __getitem__(self, index: Any) -> Any:
        gc.collect()
        return super().__getitem__(index)


def test_a_forked_process_leaves_the_garbage_of_its_parent_alone(tmp_path: Path) -> None:
    enabled = gc.isenabled()
    gc.disable()
    try:
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        garbage: list[Any] = [dist.group.WORLD]  # its threads are the parent's
        garbage.append(garbage)
        dist.destroy_process_group()
        del garbage
        loader: DataLoader[Batch[int]] = DataLoader(
            Collecting(range(4)), batch_size=2, num_workers=1, restarts=0, multiprocessing_context="fork"
        )
        assert [list(batch) for batch in loader] == [[0, 1], [2, 3]]
        loader.close()
    finally:
        if enabled:
            gc.enable()


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
    with pytest.raises(LoaderProcessError, match=rf"lost {restarts + 1} times in a row .*position 12"):  # noqa: PT012
        for batch in loader:
            delivered.append(list(batch))
    assert delivered == ORDER[:3]


def test_restarts_are_bounded(tmp_path: Path) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        Deadly(deaths(tmp_path, 9), signal.SIGKILL), batch_size=4, num_workers=1, restarts=1
    )
    loop = iter(loader)
    assert [list(next(loop)) for _ in range(3)] == ORDER[:3]
    with pytest.raises(LoaderProcessError, match=r"lost 2 times in a row while reading epoch 0, position 12.*13"):
        next(loop)
    assert loader.position == 12
    for mark in tmp_path.iterdir():
        mark.unlink()
    assert [list(batch) for batch in loader] == ORDER[3:]


def test_a_process_killed_from_outside(tmp_path: Path) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=4, num_workers=1, collate_fn=_who)
    pid, first = next(loader)
    os.kill(pid, signal.SIGKILL)
    rest = [list(batch) for _, batch in [next(loader) for _ in range(9)]]
    assert [list(first), *rest] == ORDER


class Unreadable(Numbers):
    def __getitem__(self, index: int) -> int:
        if index == 9:
            raise ValueError(f"nothing at {index}")
        return index


def test_errors_come_out_with_their_trace() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Unreadable(), batch_size=4, num_workers=1)
    next(loader)
    next(loader)
    with pytest.raises(BadSampleError, match=r"sample 9 .*nothing at 9") as caught:
        next(loader)
    assert isinstance(caught.value, ValueError)
    assert caught.value.index == 9
    assert any("in __getitem__" in note for note in caught.value.__notes__)
    assert loader.position == 8


def test_what_is_learnt_in_a_process_reaches_the_state() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Unreadable(), batch_size=4, num_workers=2, on_error="skip")
    next(loader)
    assert loader.state_dict()["quarantine"] == [], "the step that met it was read ahead, not delivered"
    batches = list(loader)
    assert batches[1].valid == [True, False, True, True]
    assert loader.state_dict()["quarantine"] == [9]


class Locked(Numbers):
    def __getitem__(self, index: int) -> Any:
        return threading.Lock()


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_samples_of_all_processes_count_together(workers: int) -> None:
    loader = DataLoader(Broken(400), batch_size=4, num_workers=workers, on_error="skip", max_bad=3)
    batches = [next(loader), next(loader), next(loader)]
    for _ in range(2):
        with pytest.raises(BadSampleError, match="4 samples cannot be read, more than max_bad=3"):
            next(loader)
    assert [batch.position for batch in batches] == [0, 4, 8]
    assert (loader.position, loader.state_dict()["quarantine"]) == (12, [0, 4, 8])
    loader.close()


class Broken(Numbers):
    def __getitem__(self, index: int) -> int:
        if index in (0, 4, 8, 12):
            raise ValueError(f"no sample {index}")
        return index


def test_what_cannot_be_pickled_is_an_error_at_once() -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(Locked(), batch_size=4, num_workers=1)
    begun = time.monotonic()
    with pytest.raises(TypeError, match="cannot travel out of its loader process"):
        next(loader)
    assert time.monotonic() - begun < 20


class LockedLater(Numbers):
    def __getitem__(self, index: int) -> Any:
        return threading.Lock() if index == 6 else index


def test_a_later_sample_that_cannot_be_pickled_is_an_error_at_once_too() -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(LockedLater(), batch_size=4, num_workers=1, timeout_s=120)
    assert list(next(loader)) == ORDER[0]
    begun = time.monotonic()
    with pytest.raises(TypeError, match="cannot travel out of its loader process"):
        next(loader)
    assert time.monotonic() - begun < 20
    assert loader.position == 4


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
def test_collate_fn_may_return_a_bare_tensor_or_array(make: Any) -> None:
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=4, num_workers=1, collate_fn=make, tail="pad")
    assert [np.asarray(batch).tolist() for batch in loader] == ORDER


TENSORS: list[torch.Tensor] = [
    torch.arange(6).reshape(2, 3).T,
    torch.tensor(2.5, dtype=torch.bfloat16),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.tensor([1 + 2j]),
    torch.arange(60_000.0),
    torch.ones(3, requires_grad=True),
    torch.tensor([1 + 2j]).conj(),
    torch.full((60_000,), 1 + 2j).conj().imag,
]


class Tensors(Numbers):
    def __getitem__(self, index: int) -> Any:
        return TENSORS[index]


def test_tensors_of_every_kind_travel() -> None:
    loader: DataLoader[Batch[torch.Tensor]] = DataLoader(Tensors(len(TENSORS)), batch_size=len(TENSORS), num_workers=1)
    for seen, expected in zip(next(loader), TENSORS, strict=True):
        assert (seen.dtype, seen.shape, seen.layout) == (expected.dtype, expected.shape, expected.layout)
        assert torch.equal(seen, expected)


FEW_DESCRIPTORS = """
import resource, sys, time
import torch
import torch.distributed as dist
from twinkle_data import DataLoader

resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))

class Rows:
    def __init__(self, size): self.size = size
    def __len__(self): return 1024
    def __getitem__(self, index): return torch.full((self.size,), index)

def read(size):
    kept = []
    try:
        for batch in DataLoader(Rows(size), batch_size=64, num_workers=2, prefetch_factor=4, timeout_s=100):
            kept.append(batch)
        return f"read {sum(int(row[0]) for batch in kept for row in batch)}"
    except Exception as error:
        return f"{type(error).__name__} {error}"

for size in (512, 20_000):
    begun = time.monotonic()
    said = " ".join(read(size).split())
    print(size, said, "quick", time.monotonic() - begun < 60)
"""


@pytest.mark.slow
def test_few_file_descriptors() -> None:
    told = subprocess.run(
        [sys.executable, "-c", FEW_DESCRIPTORS], capture_output=True, text=True, check=False, timeout=300
    )
    small, large = told.stdout.splitlines()
    assert small == "512 read 523776 quick True", told.stdout + told.stderr
    assert large.startswith("20000 ") and "ulimit -n" in large and large.endswith("quick True"), told.stdout


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
    told = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False, timeout=120)
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


LEFT = """
from twinkle_data import DataLoader

loader = DataLoader(list(range(64)), batch_size=4, num_workers=1)
loop = iter(loader)
next(loop)
next(loader)
print(loader.position, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "raise KeyError(loader)"])
def test_a_program_ends_in_the_middle_of_a_loop(end: str) -> None:
    told = subprocess.run([sys.executable, "-c", LEFT + end], capture_output=True, text=True, check=False, timeout=40)
    assert (told.stdout, told.returncode) == ("8\n", 1 if end else 0), told.stderr


class Endless(Numbers):
    def __getitem__(self, index: int) -> int:
        return index if index < 8 else int(threading.Event().wait(300))


@pytest.mark.slow
def test_busy_processes_end_together() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Endless(), batch_size=4, num_workers=2, persistent_workers=True)
    next(loader)
    begun = time.monotonic()
    loader.close()
    assert time.monotonic() - begun < 9, "torch gives each of them five seconds, one after the other"


def test_batches_can_be_pinned() -> None:
    loader: DataLoader[Batch[torch.Tensor]] = DataLoader(torch.arange(8.0), batch_size=4, pin_memory=True)
    batch = next(loader)
    assert (torch.stack(batch).tolist(), batch.indices) == ([0.0, 1.0, 2.0, 3.0], [0, 1, 2, 3])


def _number(number: int) -> None:
    os.environ["LOADER_NUMBER"] = str(number)


def test_worker_init_fn_is_called() -> None:
    loader: DataLoader[str] = DataLoader(
        Numbers(), batch_size=4, num_workers=1, worker_init_fn=_number, collate_fn=_env
    )
    assert set(loader) == {"0"}


class Sharded(Numbers):
    """Told by `worker_init_fn` what its process may read."""

    share = 0
    seed = 0


def _divide(number: int) -> None:
    info = torch.utils.data.get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    assert len(dataset) == 40
    dataset.share = dataset.length - number
    dataset.seed = torch.initial_seed()


class Telling(Sharded):
    def __getitem__(self, index: int) -> Any:
        return self.share, self.seed


def test_worker_init_fn_sees_the_users_dataset() -> None:
    loader: DataLoader[Any] = DataLoader(Telling(), batch_size=4, num_workers=1, worker_init_fn=_divide)
    assert {share for batch in loader for share, _ in batch} == {40}


@pytest.mark.slow
def test_what_worker_init_fn_draws_differs_between_seeds_epochs_and_ranks() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    seeds = {}
    for seed in (1, 2):
        for rank in range(4):
            with use_rank(rank):
                loader: DataLoader[Any] = DataLoader(
                    Telling(), batch_size=20, num_workers=1, worker_init_fn=_divide, seed=seed, device_mesh=mesh
                )
                for epoch in range(2):
                    (seeds[seed, epoch, rank],) = {told for batch in loader for _, told in batch}
    assert len(set(seeds.values())) == 2 * 2 * 2
    assert all(seeds[seed, epoch, rank] == seeds[seed, epoch, rank ^ 1] for seed, epoch, rank in seeds), "peers agree"


def _fail(number: int) -> None:
    with Path(os.environ["LOADER_CALLS"]).open("a") as calls:
        calls.write("called\n")
    raise KeyError("no such shard")


def test_an_error_in_worker_init_fn_comes_out_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADER_CALLS", str(tmp_path / "calls"))
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=4, num_workers=1, worker_init_fn=_fail)
    with pytest.raises(KeyError, match="no such shard") as caught:
        next(loader)
    assert any("in worker_init_fn of loader process 0" in note for note in caught.value.__notes__)
    assert (tmp_path / "calls").read_text() == "called\n", "it is not tried again"


def _env(batch: Batch[int]) -> str:
    return os.environ["LOADER_NUMBER"]


@pytest.mark.parametrize("options", [{"num_workers": -1}, {"restarts": -1}, {"prefetch_factor": 0}, {"timeout_s": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ProcessOptions(**options)
