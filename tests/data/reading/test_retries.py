"""Samples that cannot be read: named, skipped or replaced, with second attempts for transient errors only."""

import pickle
from collections import Counter
from typing import Any

import pytest

from twinkle_data import BadSampleError, Batch, DataLoader
from twinkle_data.reading.retries import Policy
from twinkle_mesh import DeviceMesh, use_rank


class Broken:
    """Numbers, some of which cannot be read.

    Args:
        errors: What reading an index raises; a pair (error, times) stops after so many.
        length: Number of samples.
    """

    def __init__(self, errors: dict[int, Exception | tuple[Exception, int]], length: int = 40) -> None:
        self.errors = errors
        self.length = length
        self.asked: Counter[int] = Counter()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.asked[index] += 1
        error = self.errors.get(index)
        if isinstance(error, tuple):
            error, times = error
            if self.asked[index] > times:
                error = None
        if error is not None:
            raise error
        return index


class BrokenAtOnce(Broken):
    def __getitems__(self, indices: list[int]) -> list[int]:
        return [self[index] for index in indices]


KINDS = pytest.mark.parametrize("kind", [Broken, BrokenAtOnce])


def loader(dataset: Broken, **options: Any) -> DataLoader[Batch[int]]:
    return DataLoader(dataset, **({"batch_size": 8, "backoff_s": 0.0} | options))


@KINDS
def test_raise_names_the_index_and_keeps_the_type(kind: type[Broken]) -> None:
    run = loader(kind({11: KeyError("no such key")}))
    next(run)
    with pytest.raises(BadSampleError, match=r"sample 11 .*KeyError") as caught:
        next(run)
    assert isinstance(caught.value, KeyError)
    assert caught.value.index == 11
    assert run.position == 8, "the step that failed is still the next one"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is type(caught.value)
    assert (str(copy), copy.index, isinstance(copy, KeyError)) == (str(caught.value), 11, True)


def test_after_an_error_the_same_step_is_next() -> None:
    dataset = Broken({11: (ValueError("once"), 1)})
    run = loader(dataset)
    loop = iter(run)
    next(loop)
    with pytest.raises(ValueError, match="sample 11"):
        next(loop)
    assert [list(batch) for batch in loop] == [list(range(start, start + 8)) for start in (8, 16, 24, 32)]


@KINDS
def test_skip_masks_the_row_and_remembers(kind: type[Broken]) -> None:
    dataset = kind({11: ValueError("torn"), 12: ValueError("torn")})
    run = loader(dataset, on_error="skip")
    batches = list(run)
    assert [sample for batch in batches for sample, valid in zip(batch, batch.valid, strict=True) if valid] == [
        index for index in range(40) if index not in (11, 12)
    ]
    assert batches[1].indices == list(range(8, 16))
    assert len(batches[1]) == 8
    assert run.state_dict()["quarantine"] == [11, 12]
    asked = dataset.asked[11]
    list(run)
    assert dataset.asked[11] == asked, "a sample in quarantine is not tried again"
    fresh = kind({11: ValueError("torn"), 12: ValueError("torn")})
    again = loader(fresh, on_error="skip")
    again.load_state_dict(run.state_dict())
    assert [list(batch) for batch in again] == [list(batch) for batch in run]
    assert fresh.asked[11] == 0


def test_replace_is_deterministic_and_valid() -> None:
    runs = [
        list(loader(Broken({11: ValueError("torn")}), on_error="replace", shuffle=True, batch_size=size))
        for size in (8, 8, 4)
    ]
    flat = [[sample for batch in batches for sample in batch] for batches in runs]
    assert flat[0] == flat[1] == flat[2]
    assert 11 not in flat[0]
    assert all(all(batch.valid) and batch.indices == list(batch) for batch in runs[0])
    ordered = [sample for batch in loader(Broken({}), shuffle=True) for sample in batch]
    assert [new for old, new in zip(ordered, flat[0], strict=True) if old != 11] == [
        index for index in ordered if index != 11
    ]


@KINDS
def test_transient_errors_get_further_attempts(kind: type[Broken]) -> None:
    dataset = kind({11: (ConnectionError("reset"), 3)})
    assert [sample for batch in loader(dataset, retries=3) for sample in batch] == list(range(40))
    assert dataset.asked[11] == 4


def test_one_error_in_samples_read_together_costs_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("twinkle_data.reading.randomness.time.sleep", waits.append)
    dataset = BrokenAtOnce({11: (ConnectionError("reset"), 1)})
    assert list(next(loader(dataset, batch_size=40, backoff_s=0.25))) == list(range(40))
    assert [wait for wait in waits if wait > 0.01] == [0.25]


@KINDS
@pytest.mark.parametrize(
    "error", [FileNotFoundError(2, "no such file"), PermissionError(13, "no"), IsADirectoryError()]
)
def test_errors_about_a_path_are_not_transient(kind: type[Broken], error: OSError) -> None:
    dataset = kind({0: error})
    with pytest.raises(type(error), match="sample 0 "):
        next(loader(dataset, backoff_s=100.0))


@pytest.mark.parametrize("workers", [0, 1])
@KINDS
def test_stop_iteration_is_an_error_of_its_sample(kind: type[Broken], workers: int) -> None:
    run = loader(kind({11: StopIteration("over")}), num_workers=workers)
    next(run)
    with pytest.raises(BadSampleError, match=r"sample 11 .*StopIteration: over"):
        next(run)
    assert run.position == 8


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_in_collate_fn_is_an_error(workers: int) -> None:
    def stop(batch: Batch[int]) -> int:
        raise StopIteration

    run: DataLoader[int] = DataLoader(list(range(8)), batch_size=4, collate_fn=stop, num_workers=workers)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(run)


@KINDS
def test_transient_errors_are_bounded(kind: type[Broken]) -> None:
    dataset = kind({3: TimeoutError("slow")})
    with pytest.raises(BadSampleError, match=r"sample 3 .*3 attempts: TimeoutError: slow"):
        next(loader(dataset, retries=2))
    assert dataset.asked[3] == 3


def test_other_errors_get_no_further_attempt() -> None:
    dataset = Broken({3: ValueError("torn")})
    with pytest.raises(ValueError, match="sample 3"):
        next(loader(dataset, retries=9))
    assert dataset.asked[3] == 1


def test_a_dataset_that_is_all_bad_says_so() -> None:
    dataset = Broken({index: OSError("not mounted") for index in range(40)})
    with pytest.raises(OSError, match=r"more than max_bad=5.*not mounted"):
        next(loader(dataset, on_error="skip", retries=0, max_bad=5))
    with pytest.raises(OSError, match="sample 0 in 64 attempts"):
        next(loader(dataset, on_error="replace", retries=0))


def test_the_mask_reaches_collate_and_info() -> None:
    def flags(batch: Batch[int]) -> list[bool]:
        return batch.valid

    run: DataLoader[list[bool]] = DataLoader(
        Broken({2: ValueError("torn")}), batch_size=4, on_error="skip", collate_fn=flags
    )
    assert next(run) == [True, True, False, True]
    assert run.info is not None
    assert run.info.valid == [True, True, False, True]
    assert run.info.indices == [0, 1, 2, 3]


def test_skipping_does_not_depend_on_the_layout() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    rows = []
    for rank in range(2):
        with use_rank(rank):
            run = loader(Broken({11: ValueError("torn")}), on_error="skip", device_mesh=mesh)
            rows.append([(list(batch), batch.valid) for batch in run])
    merged = [(left + right, a + b) for (left, a), (right, b) in zip(*rows, strict=True)]
    whole = [(list(batch), batch.valid) for batch in loader(Broken({11: ValueError("torn")}), on_error="skip")]
    assert merged == whole


@pytest.mark.parametrize("options", [{"on_error": "ignore"}, {"retries": -1}, {"backoff_s": -1.0}, {"max_bad": -1}])
def test_policies_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        Policy(**options)
