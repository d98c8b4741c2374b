"""What an object holds, and what is divided over ranks already."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import datasets
import pytest
from datasets.distributed import split_dataset_by_node
from torch.utils.data import BatchSampler, ChainDataset, DistributedSampler, IterableDataset, SequentialSampler, Subset
from torch.utils.data import DataLoader as TorchLoader

from twinkle_data import DataLoader, DeviceMeshSampler
from twinkle_data.sources.parts import check_undivided, objects_in
from twinkle_mesh import DeviceMesh, use_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def stream() -> Any:
    return datasets.Dataset.from_dict({"a": list(range(16))}).to_iterable_dataset(num_shards=4)


def divided() -> Any:
    return split_dataset_by_node(stream(), rank=1, world_size=2)


def of_accelerate(name: str) -> Any:
    return getattr(pytest.importorskip("accelerate.data_loader", reason="accelerate is optional"), name)


class Wrapping(IterableDataset[Any]):
    def __init__(self, inner: Any) -> None:
        self.inner = {"of": [inner]}

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner["of"][0])


def sampler() -> Any:
    rows: Any = list(range(16))
    return DistributedSampler(rows, num_replicas=2, rank=0)


DIVIDED: dict[str, Callable[[], Any]] = {
    "stream": divided,
    "mapped": lambda: divided().map(dict).take(3),
    "chained": lambda: ChainDataset([stream(), divided()]),
    "wrapped": lambda: Wrapping(divided()),
    "factory": lambda: divided,
    "accelerate": lambda: of_accelerate("IterableDatasetShard")(
        stream(), batch_size=2, num_processes=2, process_index=0
    ),
    "torch loader": lambda: TorchLoader(list(range(16)), sampler=sampler()),  # type: ignore[arg-type]  # a list
    "piped": lambda: functools.partial(iter, divided()),
}


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_dataset_is_refused_where_it_is_divided_again(name: str) -> None:
    with pytest.raises(ValueError, match="divided already"):
        DataLoader(DIVIDED[name](), batch_size=4, device_mesh=DeviceMesh.from_sizes(dp_size=2))
    alone: DataLoader[Any] = DataLoader(DIVIDED[name](), batch_size=1, device_mesh=DeviceMesh.from_sizes(tp_size=2))
    assert next(alone), "peers that read the same may read a part"


def test_an_undivided_one_gives_all_rows() -> None:
    rows = []
    for rank in range(2):
        with use_rank(rank):
            loader: DataLoader[Any] = DataLoader(stream(), batch_size=4, device_mesh=DeviceMesh.from_sizes(dp_size=2))
            rows += [row["a"] for batch in loader for row in batch]
    assert sorted(rows) == list(range(16))


def test_samplers_that_know_a_rank_are_refused() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    batches = BatchSampler(SequentialSampler(range(16)), 4, False)
    for inner in (sampler(), BatchSampler(sampler(), 4, False), of_accelerate("BatchSamplerShard")(batches, 2)):
        with pytest.raises(ValueError, match="divided already"):
            DeviceMeshSampler(inner, mesh)


def test_who_knows_a_rank_for_another_purpose_is_let_in() -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is optional")

    class Holding:
        def __init__(self) -> None:
            self.state = accelerate.PartialState(cpu=True)
            self.num_replicas, self.rank = 2, 1
            self.rows = list(range(4))

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return self.rows[index]

    rows: Any = Holding()
    check_undivided(rows, 2, "it")
    check_undivided(Subset(rows, [0, 1]), 2, "it")
    check_undivided([sampler()], 2, "a list of samples that happen to be samplers")


def test_objects_are_found_once_and_circles_end() -> None:
    circle: list[Any] = [1, "a"]
    circle.append(circle)
    assert list(objects_in(circle)) == [circle]
    inner = Wrapping(circle)
    found = list(objects_in(functools.partial(print, inner, key=lambda: inner)))
    assert sum(one is inner for one in found) == 1
    assert len(list(objects_in([[[]] * 1000 for _ in range(1000)]))) < 3000
