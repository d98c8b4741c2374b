"""The loader's own face: options, collate and info, batch_sampler, epochs, one process of a launcher."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import TensorDataset, default_collate

from twinkle_data import Batch, DataLoader, Mixture, Packing, ProcessOptions
from twinkle_mesh import DeviceMesh, use_rank

MESH = DeviceMesh.from_sizes(dp_size=2, tp_size=2)


def test_collate_gets_a_batch_and_info_tells_the_same() -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(
        list(range(10)), batch_size=4, shuffle=True, tail="pad", collate_fn=default_collate
    )
    assert loader.info is None
    for tensor in loader:
        info = loader.info
        assert info is not None
        assert tensor.tolist() == info.indices
        assert (info.epoch, info.position + info.rows) in ((0, loader.position), (0, 10))
    assert info is not None
    assert (info.rows, info.valid) == (2, [True, True])


def test_the_batch_sampler_yields_the_same_batches() -> None:
    for tail in ("drop", "short", "pad"):
        loader: DataLoader[Batch[int]] = DataLoader(
            list(range(22)), batch_size=8, shuffle=True, tail=tail, device_mesh=MESH
        )
        for rank in range(4):
            with use_rank(rank):
                loader.set_epoch(rank)
                sampler = loader.batch_sampler
                assert len(sampler) == len(list(sampler)) == len(loader)
                indices = list(sampler)
                assert loader.position == 0, "going over it moves nothing"
                assert [batch.indices for batch in loader] == indices


def test_torchs_loader_takes_the_batch_sampler() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(torch.arange(22), batch_size=8, shuffle=True)
    theirs = TorchLoader(TensorDataset(torch.arange(22)), batch_sampler=loader.batch_sampler, num_workers=0)
    assert [batch.tolist() for (batch,) in theirs] == [batch.indices for batch in loader]


def test_set_epoch_goes_to_a_front() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, shuffle=True)
    next(loader)
    loader.set_epoch(0)
    assert loader.position == 8, "it is in that epoch already"
    loader.set_epoch(3)
    third = [batch.indices for batch in loader]
    again: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, shuffle=True)
    orders = [[batch.indices for batch in again] for _ in range(4)]
    assert orders[3] == third
    assert len({str(order) for order in orders}) == 4
    with pytest.raises(ValueError, match="epoch=-1"):
        loader.set_epoch(-1)


def test_a_batch_of_a_rank_is_marked_as_its_own() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, device_mesh=MESH)
    assert not next(iter(loader)).sharded
    with use_rank(3):
        batch = next(iter(loader))
    assert batch.sharded
    assert batch.indices == [12, 13, 14, 15]


def test_a_launched_process_takes_its_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    loader: DataLoader[Batch[int]] = DataLoader(list(range(30)), batch_size=8, device_mesh=MESH)
    assert next(loader).indices == [4, 5, 6, 7]


def test_short_may_leave_a_rank_without_rows() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    rows = []
    for rank in range(4):
        with use_rank(rank):
            loader: DataLoader[Batch[int]] = DataLoader(list(range(10)), batch_size=8, tail="short", device_mesh=mesh)
            rows.append([list(batch) for batch in loader])
    assert [steps[-1] for steps in rows] == [[8], [9], [], []]


def test_next_and_loops_can_be_mixed() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(24)), batch_size=4)
    assert next(loader).position == 0
    for batch in loader:
        assert batch.position == 4
        break
    assert next(loader).position == 8
    seen = []
    for batch in loader:
        seen.append(batch.position)
        if batch.position == 12:
            seen.append(next(loader).position)
    assert seen == [12, 16, 20]
    assert (loader.epoch, next(loader).position) == (1, 0)
    assert [batch.position for batch in loader] == [4, 8, 12, 16, 20]


def test_a_loop_that_another_one_moved_is_refused() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(24)), batch_size=4)
    first, second = iter(loader), iter(loader)
    next(first)
    with pytest.raises(RuntimeError, match="set_epoch or load_state_dict"):
        next(second)
    loader.set_epoch(2)
    with pytest.raises(RuntimeError, match="start a new loop"):
        next(first)


def test_one_loader_in_two_threads_is_refused() -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            reading.set()
            assert go_on.wait(30)
            return index

    loader: DataLoader[Batch[int]] = DataLoader(Slow(), batch_size=4)
    seen: list[list[int]] = []
    thread = threading.Thread(target=lambda: seen.append(list(next(loader))), name="reader")
    thread.start()
    assert reading.wait(30)
    for use in (lambda: next(loader), lambda: next(iter(loader)), lambda: loader.set_epoch(3)):
        with pytest.raises(RuntimeError, match=r"'reader'.*queue\.Queue"):
            use()
    go_on.set()
    thread.join(30)
    assert seen == [[0, 1, 2, 3]]
    assert list(next(loader)) == [4, 5, 6, 7], "one thread after the other is fine"


def test_whole_numbers_of_numpy() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(
        list(range(24)), batch_size=np.int64(4), seed=np.uint32(3), shuffle=True
    )
    loader.set_epoch(np.int64(2))
    next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    assert (state["seed"], state["epoch"], state["position"]) == (3, 2, 4)
    with pytest.raises(TypeError, match=r"batch_size=4\.0 is a float"):
        DataLoader(list(range(24)), batch_size=4.0)  # type: ignore[call-overload]  # on purpose


LAUNCHED = """
import json, os, sys
from twinkle_data import DataLoader, DeviceMeshSampler
from twinkle_mesh import DeviceMesh

told = {}
loader = DataLoader(list(range(24)), batch_size=8, shuffle=True)
told["rows"] = [batch.indices for batch in loader]
told["sharded"] = next(loader).sharded
peers = DataLoader(list(range(24)), batch_size=8, device_mesh=DeviceMesh.from_sizes(tp_size=2))
told["mesh"] = [batch.indices for batch in peers]
for make in (DataLoader, DeviceMeshSampler):
    mesh = DeviceMesh.from_sizes(dp_size=4)
    try:
        DataLoader(list(range(24)), batch_size=8, device_mesh=mesh) if make is DataLoader else make([[1]], mesh)
    except ValueError as error:
        told[make.__name__] = str(error)
try:
    DataLoader(list(range(24)), batch_size=7)
except ValueError as error:
    told["uneven"] = str(error)
open(os.path.join(sys.argv[1], os.environ["RANK"]), "w").write(json.dumps(told))
"""


@pytest.mark.slow
def test_launched_processes_divide_over_all_ranks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LAUNCHED)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*launcher, str(program), str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(2)]
    whole = [batch.indices for batch in DataLoader(list(range(24)), batch_size=8, shuffle=True)]
    assert [left + right for left, right in zip(told[0]["rows"], told[1]["rows"], strict=True)] == whole
    for own in told:
        assert own["sharded"]
        assert own["mesh"] == [list(range(start, start + 8)) for start in (0, 8, 16)], "tp peers see the same"
        for name in ("DataLoader", "DeviceMeshSampler"):
            assert "device_mesh has 4 ranks and the launcher started WORLD_SIZE=2 processes" in own[name]
        assert "must be a multiple of data_world_size=2" in own["uneven"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 7, "device_mesh": MESH}, "use 6 or 8"),
        ({"batch_size": 4, "seed": -1}, "seed=-1 is outside"),
        ({"batch_size": 4, "tail": "cut"}, "tail='cut' is not one of 'drop', 'short', 'pad'"),
        ({"batch_size": 31}, "an epoch of 30 samples has no step"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataLoader(list(range(30)), **options)


def test_options_are_grouped_or_keywords() -> None:
    def batches(**options: Any) -> list[list[int]]:
        loader: DataLoader[Any] = DataLoader(list(range(12)), batch_size=6, **options)
        return [batch.indices if isinstance(batch, Batch) else [one.indices for one in batch] for batch in loader]

    lengths = [3, 5, 2] * 4
    keywords = batches(lengths=lengths, max_tokens=10, micro_batches=2)
    assert keywords == batches(packing=Packing(lengths, 10, micro_batches=2))
    assert batches(num_workers=1, restarts=0) == batches(processes=ProcessOptions(1, restarts=0))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_worker": 1}, TypeError, "num_workers="),
        (
            {"num_workers": 1, "processes": ProcessOptions(1)},
            TypeError,
            "num_workers are both given: give them in Proc",
        ),
        ({"lengths": [1], "packing": Packing([1], 2)}, TypeError, "lengths are both given: give them in Packing"),
        ({"lengths": [1] * 4}, ValueError, r"packing needs both"),
        ({"micro_batches": 2}, ValueError, r"micro_batches=2 belongs to packing"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        DataLoader([1, 2, 3, 4], batch_size=2, **options)


@pytest.mark.parametrize("batches", [1, 2, 3, 4])
def test_the_end_of_an_epoch_is_told_once(batches: int) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(batches * 2)), batch_size=2)
    for epoch in range(3):
        seen: list[int] = []
        ended = False
        for batch in loader:
            seen += batch
            try:
                seen += next(loader)
            except StopIteration:
                ended = True
        assert seen == list(range(batches * 2))
        assert ended is (batches % 2 == 1)
        assert loader.epoch == epoch + 1
    assert next(loader).epoch == 3, "the loop has told the end of epoch 2"
    for _ in range(batches - 1):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)
    assert next(loader).epoch == 4


def test_a_stream_has_no_indices() -> None:
    loader: DataLoader[Any] = DataLoader(lambda: iter(range(10)), batch_size=2)
    for name in ("plan", "batch_sampler"):
        with pytest.raises(TypeError, match="no indices"):
            getattr(loader, name)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert len(list(loader)) == 5


@pytest.mark.parametrize("option", ["batch_size", "seed", "num_workers", "retries", "max_bad", "prefetch_factor"])
@pytest.mark.parametrize("value", [True, np.True_, torch.tensor(True), 1.0])
def test_a_bool_is_no_number(option: str, value: Any) -> None:
    with pytest.raises(TypeError, match="whole number"):
        DataLoader([1, 2], **{"batch_size": 1, option: value})


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_dataset_that_grew_is_told_of(workers: int, persistent: bool) -> None:
    rows, column = list(range(8)), np.arange(8).tolist()
    datasets: list[tuple[Any, Any]] = [
        (rows, rows),
        ({"a": column, "b": column}, column),
        (Mixture({"a": (own := list(range(6))), "b": [1, 2]}), own),
    ]
    for dataset, grows in datasets:
        loader: DataLoader[Any] = DataLoader(dataset, batch_size=4, num_workers=workers, persistent_workers=persistent)
        assert len(list(loader)) == 2
        grows.append(100)
        with pytest.raises(ValueError, match="new DataLoader"):
            list(loader)
        grows.pop()
        assert len(list(loader)) == 2
        grows.pop()
        with pytest.raises(ValueError, match="new DataLoader"):
            next(loader)
        loader.close()


SWITCHES = ("shuffle", "replicate", "progress", "sample_seeds", "pin_memory", "persistent_workers")


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.parametrize("value", ["false", "True", None, 2, [0], 1.0])
def test_a_switch_takes_true_and_false(name: str, value: Any) -> None:
    options: Any = {name: value}
    with pytest.raises(TypeError, match=name):
        DataLoader(range(8), batch_size=4, **options)


@pytest.mark.parametrize("value", [0, False, np.False_])
def test_zero_and_numpys_bool_are_switches(value: Any) -> None:
    assert [row for batch in DataLoader(range(8), batch_size=4, shuffle=value) for row in batch] == list(range(8))
