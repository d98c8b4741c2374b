"""Ranks that have different datasets, and datasets without an order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_data import DataLoader, DeviceMeshSampler, Mixture, RanksDifferError, Shards
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import current_worker, session

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = [f"part-{number:02}" for number in range(16)]


def here() -> int:
    return current_worker().rank or 0


def shards(lengths: list[int]) -> Shards:
    return Shards(lambda shard, offset: [shard] * (lengths[shard] - offset), 2, lengths, fingerprint="one")


DIFFERENT: dict[str, Callable[[], Any]] = {
    "another order": lambda: NAMES[::-1] if here() else NAMES,
    "longer": lambda: NAMES * 2 if here() else NAMES,
    "another row": lambda: [*NAMES[:7], "other", *NAMES[8:]] if here() else NAMES,
    "columns": lambda: {"a": NAMES[::-1] if here() else NAMES},
    "parts": lambda: Mixture({"a": NAMES[: 8 - here()], "b": NAMES[: 8 + here()]}),
    "shards": lambda: shards([8 - here(), 8 + here()]),
}


@pytest.mark.parametrize("kind", DIFFERENT)
@pytest.mark.parametrize("shuffle", [False, True])
def test_datasets_that_differ_by_rank_are_refused(kind: str, *, shuffle: bool) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=3, tp_size=2)
    with session("threads", groups=[DeviceGroup("data", 6, "CPU")]), pytest.raises(RanksDifferError, match="rank"):
        DataLoader(DIFFERENT[kind], batch_size=6, device_mesh=mesh, remote_group="data", shuffle=shuffle)


def test_a_name_of_the_contents_counts_and_equal_datasets_pass() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with session("threads", groups=[DeviceGroup("data", 2, "CPU")]):
        loader = DataLoader(lambda: list(NAMES), batch_size=4, device_mesh=mesh, remote_group="data", shuffle=True)
        assert sorted(row for batch in loader for row in batch) == NAMES
        DataLoader(DIFFERENT["another row"], batch_size=4, device_mesh=mesh, remote_group="data", fingerprint="names")


class Unordered:
    def __iter__(self) -> Any:
        return iter(set(NAMES))


@pytest.mark.parametrize(
    "dataset",
    [
        set(NAMES),
        frozenset(NAMES),
        dict.fromkeys(NAMES).keys() & set(NAMES),
        lambda: set(NAMES),
        lambda: iter(set(NAMES)),
        Unordered(),
        Shards(lambda shard, offset: set(NAMES), 2),
        Shards(lambda shard, offset: set(NAMES), 2, [16, 16]),
    ],
)
def test_a_set_is_no_dataset(dataset: Any) -> None:
    with pytest.raises(TypeError, match="sorted"):
        list(DataLoader(dataset, batch_size=4))


def test_a_set_is_neither_a_part_nor_a_sampler() -> None:
    with pytest.raises(TypeError, match="sorted"):
        Mixture({"a": set(NAMES)})
    with pytest.raises(TypeError, match="sorted"):
        DeviceMeshSampler(set(range(8)), DeviceMesh.from_sizes(dp_size=2))
    assert len(list(DataLoader(dict.fromkeys(NAMES).keys(), batch_size=4))) == 4
