"""Loader processes: started any way, killed at any time, never waited for without end."""

import gc
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.data.loading.plain_numbers import ORDER, Numbers, who
from torch.utils.data import default_collate

from twinkle_data import BadSampleError, Batch, DataLoader
from twinkle_data.loading.loader_processes.processes import ProcessOptions

pytestmark = pytest.mark.usefixtures("no_process_is_left")


def build() -> Numbers:
    return Numbers(24)


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
        Numbers(), batch_size=4, num_workers=1, persistent_workers=True, collate_fn=who
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
        with pytest.raises(BadSampleError, match=r"4 samples .*max_bad=3"):
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
    with pytest.raises(TypeError, match="cannot be sent"):
        next(loader)
    assert time.monotonic() - begun < 20


class LockedLater(Numbers):
    def __getitem__(self, index: int) -> Any:
        return threading.Lock() if index == 6 else index


def test_a_later_sample_that_cannot_be_pickled_is_an_error_at_once_too() -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(LockedLater(), batch_size=4, num_workers=1, timeout_s=120)
    assert list(next(loader)) == ORDER[0]
    begun = time.monotonic()
    with pytest.raises(TypeError, match="cannot be sent"):
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
    told = subprocess.run([sys.executable, "-c", LEFT + end], capture_output=True, text=True, check=False, timeout=240)
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


@pytest.mark.parametrize("options", [{"num_workers": -1}, {"restarts": -1}, {"prefetch_factor": 0}, {"timeout_s": 0}])
def test_options_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        ProcessOptions(**options)
