"""Datasets that are gone through: sharded, resumed where they can be, and refused clearly where they cannot."""

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.sources.streams import Stateful, rows_of

from twinkle_data import Batch, DataLoader, Shards, sample_seed
from twinkle_data.order.shard_rows import permuted
from twinkle_data.order.tails import Tail
from twinkle_data.sources.shard_stream import ShardStream
from twinkle_data.sources.sharded_order import WINDOW, ShardedOrder
from twinkle_mesh import DeviceMesh, use_rank

LENGTHS = [3, 0, 7, 5, 7]
OPENED: list[tuple[int, int]] = []


def start(shard: int, offset: int) -> Iterator[tuple[int, int]]:
    OPENED.append((shard, offset))
    for place in range(offset, LENGTHS[shard]):
        yield shard, place


def sized() -> Shards:
    return Shards(start, 5, LENGTHS)


def unsized() -> Shards:
    return Shards(start, 5)


def order_by_hand(lengths: list[int]) -> list[tuple[int, int]]:
    return sorted(
        ((shard, place) for shard, length in enumerate(lengths) for place in range(length)),
        key=lambda pair: (pair[1], pair[0]),
    )


@given(st.lists(st.integers(0, 12), min_size=1, max_size=7), st.booleans(), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_known_and_unknown_lengths_give_one_order(lengths: list[int], shuffle: bool, epoch: int) -> None:
    def begin(shard: int, offset: int) -> Iterator[tuple[int, int]]:
        return iter([(shard, place) for place in range(offset, lengths[shard])])

    order = ShardedOrder(lengths, 5, shuffle=shuffle)
    starts = np.concatenate(([0], np.cumsum(lengths)))
    indices = order.take(epoch, np.arange(sum(lengths)))
    shards = np.searchsorted(starts, indices, side="right") - 1
    pairs = list(zip(shards.tolist(), (indices - starts[shards]).tolist(), strict=True))
    stream = ShardStream(Shards(begin, len(lengths)), 5, shuffle=shuffle)
    assert list(stream.begin(epoch, None)) == pairs
    if not shuffle:
        assert pairs == order_by_hand(lengths)


@given(st.lists(st.integers(0, 3), min_size=WINDOW - 1, max_size=WINDOW + 40), st.booleans(), st.data())
@settings(max_examples=20, deadline=None)
def test_more_shards_than_the_window_come_in_one_order_and_resume(
    lengths: list[int], shuffle: bool, data: st.DataObject
) -> None:
    def begin(shard: int, offset: int) -> Iterator[tuple[int, int]]:
        return iter([(shard, place) for place in range(offset, lengths[shard])])

    order = ShardedOrder(lengths, 5, shuffle=shuffle)
    stop = data.draw(st.integers(0, sum(lengths)))
    starts = np.concatenate(([0], np.cumsum(lengths)))
    indices = order.take(1, np.arange(stop, sum(lengths)))
    shards = np.searchsorted(starts, indices, side="right") - 1
    pairs = list(zip(shards.tolist(), (indices - starts[shards]).tolist(), strict=True))
    stream = ShardStream(Shards(begin, len(lengths)), 5, shuffle=shuffle)
    front = list(itertools.islice(stream.begin(1, None), stop))
    assert sorted(front + pairs) == sorted(order_by_hand(lengths))
    resumed = ShardStream(Shards(begin, len(lengths)), 5, shuffle=shuffle)
    assert list(resumed.begin(1, json.loads(json.dumps(stream.state())) if stop else None)) == pairs


@pytest.mark.parametrize("known", [True, False])
def test_each_of_many_shards_is_opened_once(known: bool) -> None:
    opened = Opened([20] * 600)
    shards = Shards(opened.start, 600, opened.lengths if known else None)
    loader: DataLoader[Batch[Any]] = DataLoader(shards, batch_size=100, shuffle=True)
    assert len({sample for batch in loader for sample in batch}) == opened.pulled == 12_000
    assert opened.opened == 600 and opened.most <= WINDOW + 1


def test_the_order_of_many_shards_has_a_name_of_its_own() -> None:
    few, many = (DataLoader(Shards(start, count), batch_size=4).state_dict() for count in (WINDOW, WINDOW + 1))
    assert few["algorithm"] == "shards-v1+sequential-v1"
    assert many["algorithm"] == f"shards-v2-window{WINDOW}+sequential-v1"


@pytest.mark.parametrize("make", [sized, unsized])
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("tail", ["drop", "short", "pad"])
def test_shards_in_a_loader(make: Any, workers: int, tail: Tail) -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(make, batch_size=4, num_workers=workers, tail=tail)
    expected = order_by_hand(LENGTHS)
    for epoch in range(2):
        batches = list(loader)
        assert rows_of(batches) == (expected[:20] if tail == "drop" else expected)
        assert [batch.position for batch in batches] == list(range(0, 20 if tail == "drop" else 22, 4))
        assert (loader.epoch, loader.position) == (epoch + 1, 0)


@pytest.mark.parametrize("make", [sized, unsized, Stateful])
@pytest.mark.parametrize("stop", [0, 1, 3, 5])
def test_resume_on_other_ranks(make: Any, stop: int) -> None:
    whole = rows_of(list(DataLoader(make(), batch_size=4, tail="short")))
    loader: DataLoader[Batch[Any]] = DataLoader(make(), batch_size=4, tail="short", seed=1)
    for _ in range(stop):
        next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    rows: dict[int, list[Any]] = {}
    for rank in range(4):
        with use_rank(rank):
            own: DataLoader[Batch[Any]] = DataLoader(make(), batch_size=6, tail="short", seed=1, device_mesh=mesh)
            own.load_state_dict(state)
            steps = [list(batch) for batch in own]
            assert rows.setdefault(mesh.data_rank(), steps) == steps
            assert rows_of(list(own))[:1] == [rows_of([*DataLoader(make(), batch_size=6, device_mesh=mesh)])[0]]
    assert len(rows[0]) == len(rows[1])
    assert [sample for left, right in zip(rows[0], rows[1], strict=True) for sample in left + right] == whole[
        4 * stop :
    ]


def test_only_what_is_needed_is_opened() -> None:
    OPENED.clear()
    loader: DataLoader[Batch[Any]] = DataLoader(sized(), batch_size=4, tail="short")
    loader.load_state_dict({**loader.state_dict(), "position": 16})
    assert rows_of(list(loader)) == order_by_hand(LENGTHS)[16:]
    assert len(OPENED) == 3
    assert min(offset for _, offset in OPENED) == 4


class Opened:
    """Shards of numbers that count how many are open, and how many samples are pulled."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths
        self.now = self.most = self.pulled = self.opened = 0

    def start(self, shard: int, offset: int) -> Iterator[tuple[int, int]]:
        self.opened += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for place in range(offset, self.lengths[shard]):
                self.pulled += 1
                yield shard, place
        finally:
            self.now -= 1


@pytest.mark.parametrize("known", [True, False])
def test_shards_are_closed(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twinkle_data.sources.open_shards._most_open", lambda: 8)
    opened = Opened([2] * 100)
    shards = Shards(opened.start, 100, opened.lengths if known else None)
    loader: DataLoader[Batch[Any]] = DataLoader(shards, batch_size=10)
    assert len({sample for batch in loader for sample in batch}) == 200
    assert opened.most <= 9, "one more is opened before another is closed"
    assert opened.now == 0 or known


FILES = """
import resource, sys
from pathlib import Path
from twinkle_data import DataLoader, Shards

resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
folder = Path(sys.argv[1])
for shard in range(300):
    (folder / str(shard)).write_text("".join(f"{shard}:{place}\\n" for place in range(3)))

def start(shard, offset):
    with (folder / str(shard)).open() as lines:
        for place, line in enumerate(lines):
            if place >= offset:
                yield line

held = [open(sys.argv[0]) for _ in range(60)]  # the program's own files
for lengths in ([3] * 300, None):
    rows = [row for batch in DataLoader(Shards(start, 300, lengths), batch_size=30, shuffle=True) for row in batch]
    assert len(rows) == len(set(rows)) == 900, len(rows)
print("done")
"""


@pytest.mark.slow
def test_more_shards_than_file_descriptors(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(FILES.replace("\\\\", "\\"))
    (tmp_path / "shards").mkdir()
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "shards")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr


def test_a_rank_pulls_what_it_needs_of_few_shards() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=8)
    opened = Opened([400] * 4)
    with use_rank(3):
        loader: DataLoader[Batch[Any]] = DataLoader(Shards(opened.start, 4, [400] * 4), batch_size=32, device_mesh=mesh)
        needed = sum(len(batch) for batch in loader)
    assert needed == 200
    assert opened.pulled < 1.5 * needed


def test_what_is_costly_to_open_is_read_on() -> None:
    opened = Opened([400] * 4)
    starts = []

    def start(shard: int, offset: int) -> Iterator[tuple[int, int]]:
        starts.append(shard)
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.002:
            pass
        return opened.start(shard, offset)

    with use_rank(3):
        mesh = DeviceMesh.from_sizes(dp_size=8)
        list(DataLoader(Shards(start, 4, [400] * 4), batch_size=32, device_mesh=mesh))
    assert len(starts) < 20


def noisy(shard: int, offset: int) -> Iterator[tuple[int, float, float]]:
    time.sleep(0.002)  # to read on is faster than to open again
    random.random()
    return ((place, random.random(), float(np.random.random())) for place in range(offset, 8))


def test_what_a_shard_draws_is_the_same_on_any_number_of_ranks() -> None:
    drawn: list[dict[int, Any]] = []
    for ranks in (1, 2, 4):
        drawn.append({})
        for rank in range(ranks):
            with use_rank(rank):
                mesh = DeviceMesh.from_sizes(dp_size=ranks)
                for batch in DataLoader(Shards(noisy, 3, [8] * 3), batch_size=4, device_mesh=mesh):
                    drawn[-1].update(zip(batch.indices, batch, strict=True))
    assert len(drawn[0]) == 24
    assert drawn[0] == drawn[1] == drawn[2]


def test_what_a_shard_draws_is_the_same_after_a_resume() -> None:
    for dataset in (Shards(noisy, 3, [8] * 3), Shards(noisy, 3)):
        loader = DataLoader(dataset, batch_size=4)
        begun = [list(next(loader)) for _ in range(3)]
        state = loader.state_dict()
        rest = list(loader)
        again = DataLoader(dataset, batch_size=4)
        again.load_state_dict(state)
        assert list(again) == rest
        again.set_epoch(0)
        assert [list(next(again)) for _ in range(3)] == begun


def test_a_shard_that_is_shorter_than_it_said() -> None:
    shards = Shards(lambda shard, offset: range(offset, 2), 2, [2, 3])
    with pytest.raises(IndexError, match=r"sample 4 .*shard 1 ended at 2"):
        list(DataLoader(shards, batch_size=5))


def test_shards_are_checked() -> None:
    with pytest.raises(ValueError, match="count=0"):
        Shards(start, 0)
    with pytest.raises(ValueError, match="for each of 2 shards"):
        Shards(start, 2, [1])
    with pytest.raises(TypeError, match=r"a shard's length=1\.5"):
        Shards(start, 2, [1, 1.5])  # type: ignore[list-item]  # on purpose
    with pytest.raises(ValueError, match="shard 4000 has -1") as caught:
        Shards(start, 5000, [3] * 4000 + [-1] * 1000)
    assert len(str(caught.value)) < 200


def test_an_error_of_one_shard_does_not_show_all() -> None:
    shards = Shards(lambda shard, offset: range(offset, 2), 3000, [3] * 3000)
    with pytest.raises(IndexError, match=r"length .*3$") as caught:
        list(DataLoader(shards, batch_size=3000))
    assert len(str(caught.value)) < 200


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_rows_of_shuffled_shards_come_once_in_other_orders(
    lengths: list[int], window: int, data: st.DataObject
) -> None:
    starts = np.concatenate(([0], np.cumsum(lengths)))
    epochs = []
    for epoch in range(2):
        shards = np.repeat(np.arange(len(lengths)), lengths)
        offsets = np.concatenate([np.arange(length) for length in lengths] or [np.arange(0)])
        if not len(offsets):
            return
        found = permuted(7, epoch, shards, offsets, np.array(lengths), window)
        assert sorted((starts[shards] + found).tolist()) == list(range(sum(lengths)))
        assert (found // window == offsets // window).all(), "a row stays in its window"
        few = np.array(data.draw(st.lists(st.integers(0, len(offsets) - 1), min_size=1, max_size=8)))
        again = permuted(7, epoch, shards[few], offsets[few], np.array(lengths), window)
        assert again.tolist() == found[few].tolist(), "any position is found alone"
        epochs.append(found.tolist())
    assert max(lengths) < 12 or window < 12 or epochs[0] != epochs[1]


def drawing(shard: int, offset: int) -> Iterator[tuple[int, int, float, int]]:
    for place in range(offset, LENGTHS[shard]):
        yield shard, place, random.random(), sample_seed()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("stop", [0, 1, 2, 5])
def test_shuffled_rows_resume_and_draw_alike_on_other_ranks(known: bool, stop: int) -> None:
    def make(batch_size: int, **options: Any) -> DataLoader[Batch[Any]]:
        shards = Shards(drawing, 5, LENGTHS if known else None)
        return DataLoader(shards, batch_size=batch_size, shuffle=True, tail="short", seed=3, **options)

    whole = [rows_of(list(loader)) for loader in [make(4)] for _ in range(2)]
    assert sorted(row[:2] for row in whole[0]) == sorted(order_by_hand(LENGTHS))
    assert [row[:2] for row in whole[0]] != [row[:2] for row in whole[1]]
    assert {row[2:] for row in whole[0]}.isdisjoint(row[2:] for row in whole[1]), "a row draws anew in each epoch"
    before = make(4)
    list(before)
    for _ in range(stop):
        next(before)
    state = json.loads(json.dumps(before.state_dict()))
    mesh = DeviceMesh.from_sizes(dp_size=2)
    steps = []
    for rank in range(2):
        with use_rank(rank):
            after = make(6, device_mesh=mesh, num_workers=rank)
            after.load_state_dict(state)
            steps.append([list(batch) for batch in after])
    assert [row for parts in zip(*steps, strict=True) for part in parts for row in part] == whole[1][4 * stop :]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("held", "given"), [([5, 5], [3, 3]), ([3, 4], [3, 3]), ([9], [8]), ([3, 3], [3, 3])])
def test_a_shard_that_is_longer_than_it_said(held: list[int], given: list[int], shuffle: bool) -> None:
    shards = Shards(lambda shard, offset: iter(range(offset, held[shard])), len(given), given)
    loader: DataLoader[Batch[int]] = DataLoader(shards, batch_size=2, tail="short", shuffle=shuffle)
    if held == given:
        assert len(rows_of(list(loader))) == sum(given)
        return
    with pytest.raises(IndexError, match=f"more than {given[-1]} samples"):
        list(loader)


def test_a_rank_pulls_what_it_needs_of_its_own_shuffled_shards() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    pulled = []
    for rank in range(4):
        opened = Opened([40] * 8)
        with use_rank(rank):
            shards = Shards(opened.start, 8, opened.lengths)
            loader: DataLoader[Batch[Any]] = DataLoader(shards, batch_size=8, device_mesh=mesh, shuffle=True)
            rows = {sample for batch in loader for sample in batch}
        assert len(rows) == 80
        assert len({shard for shard, _ in rows}) == 2
        pulled.append(rows)
    assert len(set().union(*pulled)) == 320
