"""Datasets that can only be gone through: resumed where they have a state, and refused clearly where they cannot be."""

import json
from collections.abc import Iterator
from typing import Any

import datasets
import pytest
from tests.data.sources.streams import Counting, Stateful, rows_of

from twinkle_data import BadSampleError, Batch, DataLoader, NotResumableError


class Live(Stateful):
    """Gives out, and keeps, the dict that it counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.place = {"at": 0}

    def __iter__(self) -> Iterator[int]:
        while self.place["at"] < self.length:
            self.place["at"] += 1
            yield self.place["at"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.place

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state


def test_a_dataset_may_give_out_its_live_state() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Live(), batch_size=4, tail="short")
    assert [rows_of(list(loader)) for _ in range(3)] == [list(range(22))] * 3
    next(loader)
    state = loader.state_dict()
    rest = rows_of(list(loader))
    again: DataLoader[Batch[int]] = DataLoader(Live(), batch_size=4, tail="short")
    for _ in range(2):
        again.load_state_dict(state)
        assert rows_of(list(again)) == rest == list(range(4, 22))


def hugging_face(buffer: int) -> Any:
    columns = datasets.Dataset.from_dict({"a": list(range(400))})
    stream = columns.to_iterable_dataset(num_shards=4)
    return (stream.shuffle(buffer_size=buffer, seed=1) if buffer else stream).map(dict)


def test_a_shuffle_buffer_that_is_not_saved_is_told_of() -> None:
    loader: DataLoader[Batch[Any]] = DataLoader(hugging_face(50), batch_size=4)
    next(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    again: DataLoader[Batch[Any]] = DataLoader(hugging_face(50), batch_size=4)
    again.load_state_dict(state)
    with pytest.warns(RuntimeWarning, match="50 samples are lost"):
        next(again)
    plain: DataLoader[Batch[Any]] = DataLoader(hugging_face(0), batch_size=4, tail="short")
    next(plain)
    resumed: DataLoader[Batch[Any]] = DataLoader(hugging_face(0), batch_size=4, tail="short")
    resumed.load_state_dict(plain.state_dict())
    assert [row["a"] for row in rows_of(list(resumed))] == list(range(4, 400))


def test_a_stream_without_a_state_is_refused_clearly() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(Counting(), batch_size=4)
    next(loader)
    with pytest.raises(NotResumableError, match="cannot be resumed"):
        loader.state_dict()
    assert len(list(loader)) == 4, "in this process it goes on"
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    again: DataLoader[Batch[int]] = DataLoader(Counting(), batch_size=4)
    again.load_state_dict(state)
    assert len(list(again)) == 5
    with pytest.raises(NotResumableError):
        again.load_state_dict({**state, "position": 4})


def test_a_callable_that_makes_generators() -> None:
    loader: DataLoader[Batch[int]] = DataLoader(lambda: (number for number in range(5)), batch_size=2, tail="pad")
    assert [rows_of(list(loader)) for _ in range(2)] == [[0, 1, 2, 3, 4]] * 2


def test_what_cannot_be_gone_through_again_is_refused() -> None:
    with pytest.raises(TypeError, match="only once"):
        DataLoader((number for number in range(5)), batch_size=2)
    with pytest.raises(ValueError, match="shuffle=True"):
        DataLoader(Counting(), batch_size=2, shuffle=True)
    with pytest.raises(ValueError, match="on_error='skip'"):
        DataLoader(Counting(), batch_size=2, on_error="skip")
    with pytest.raises(TypeError, match="has no length"):
        len(DataLoader(Counting(), batch_size=2))


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(ValueError, match="after 3 samples"):
        next(DataLoader(Counting(3), batch_size=4))
    with pytest.raises(ValueError, match="has no step"):
        next(DataLoader(Counting(0), batch_size=4, tail="short"))


def test_an_error_in_a_stream_names_the_sample() -> None:
    def broken() -> Iterator[int]:
        yield from range(9)
        raise KeyError("torn")

    loader: DataLoader[Batch[int]] = DataLoader(broken, batch_size=3)
    assert [list(next(loader)) for _ in range(3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]], "what was read is delivered"
    with pytest.raises(BadSampleError, match=r"sample 9 .*KeyError: 'torn'") as caught:
        next(loader)
    assert isinstance(caught.value, KeyError)
