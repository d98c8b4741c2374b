"""Datasets that can only be gone through: resumed where they have a state, and refused clearly where they cannot be."""

import json
from collections.abc import Iterator
from typing import Any, ClassVar

import datasets
import pytest
from tests.data.test_next_passes import Walk
from torch.utils.data import IterableDataset

from twinkle_data import BadSampleError, Batch, DataLoader


class Counting(IterableDataset[int]):
    """A torch iterable dataset without a state."""

    def __init__(self, length: int = 22) -> None:
        self.length = length

    def __iter__(self) -> Iterator[int]:
        yield from range(self.length)


def hugging_face(buffer: int) -> Any:
    columns = datasets.Dataset.from_dict({"a": list(range(400))})
    stream = columns.to_iterable_dataset(num_shards=4)
    return (stream.shuffle(buffer_size=buffer, seed=1) if buffer else stream).map(dict)


def test_hugging_faces_streams_resume_and_begin_again() -> None:
    for workers in (0, 1):
        plain: DataLoader[Any] = DataLoader(hugging_face(0), batch_size=4, drop_last=False, num_workers=workers)
        next(iter(plain))
        for _ in range(3):
            resumed: DataLoader[Any] = DataLoader(hugging_face(0), batch_size=8, drop_last=False, num_workers=workers)
            resumed.load_state_dict(json.loads(json.dumps(plain.state_dict())))
            assert [row["a"] for batch in resumed for row in batch] == list(range(4, 400))
            assert sorted(row["a"] for batch in resumed for row in batch) == list(range(400))


def test_a_stream_without_a_state_is_resumed_by_skipping() -> None:
    loader = DataLoader(Counting(), batch_size=4)
    loop = iter(loader)
    next(loop)
    next(loop)
    state = json.loads(json.dumps(loader.state_dict()))
    assert state["position"] == 8 and "source" not in state
    for workers in (0, 1):
        again = DataLoader(Counting(), batch_size=2, num_workers=workers)
        again.load_state_dict(state)
        assert [row for batch in again for row in batch] == list(range(8, 22))
        assert (again.epoch, again.position) == (1, 0)
        assert [row for batch in again for row in batch] == list(range(22))


def test_what_cannot_be_gone_through_again_is_refused() -> None:
    with pytest.raises(TypeError, match="read only once"):
        DataLoader((number for number in range(5)), batch_size=2)
    with pytest.raises(ValueError, match="shuffle="):
        DataLoader(Counting(), batch_size=2, shuffle=True)
    with pytest.raises(ValueError, match="on_error='skip'"):
        DataLoader(Counting(), batch_size=2, on_error="skip")
    with pytest.raises(TypeError, match="has no length"):
        len(DataLoader(Counting(), batch_size=2))


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="after 3 samples"):
        next(iter(DataLoader(Counting(3), batch_size=4)))
    with pytest.raises(ValueError, match="has no step"):
        next(iter(DataLoader(Counting(0), batch_size=4, drop_last=False)))


def test_an_error_in_a_stream_names_the_sample() -> None:
    def broken() -> Iterator[int]:
        yield from range(9)
        raise KeyError("torn")

    loader: DataLoader[Batch[int]] = DataLoader(broken, batch_size=3)
    loop = iter(loader)
    assert [list(next(loop)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]], "what was read is delivered"
    with pytest.raises(BadSampleError, match=r"sample 9 .*KeyError: 'torn'") as caught:
        next(loop)
    assert isinstance(caught.value.__cause__, KeyError)
    assert loader.position == 9


def test_ctrl_c_while_a_stream_is_read_loses_nothing() -> None:
    class Interrupted(Walk):
        stops: ClassVar = {7}

        def __iter__(self) -> Iterator[int]:
            for row in super().__iter__():
                if row in self.stops:
                    self.stops.discard(row)
                    raise KeyboardInterrupt
                yield row

    loader: DataLoader[Batch[int]] = DataLoader(Interrupted(22), batch_size=4, drop_last=False)
    told: list[int] = []
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - what came before counts
        for batch in loader:
            told += batch
    assert told + [row for batch in loader for row in batch] == list(range(22))
