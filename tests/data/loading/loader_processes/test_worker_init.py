"""What `worker_init_fn` sees, draws and raises in each loader process."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.data.loading.plain_numbers import Numbers

from twinkle_data import Batch, DataLoader
from twinkle_mesh import DeviceMesh, use_rank

pytestmark = pytest.mark.usefixtures("no_process_is_left")


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
