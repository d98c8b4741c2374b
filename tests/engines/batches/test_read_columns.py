"""Rollouts in functions that say which columns they read and add: a column that is left out is never None."""

from __future__ import annotations

import pickle
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_engines.batches.rollouts import Rollouts
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import concat, get, on, remote_class, remote_function, select, session, take
from twinkle_remote.errors import UnreadColumnError
from twinkle_remote.protocol import component_of
from twinkle_remote.protocol.tables import Reads
from twinkle_remote.values.column_bytes import bytes_by_column
from twinkle_remote.values.wanted_columns import only_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@remote_class()
class Stage:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def hold(self, rollouts: Rollouts) -> Rollouts:
        return rollouts

    @remote_function(
        dispatch="slice_dp", collect="flatten", replicate=("how",), reads=("rewards", "completions", "source")
    )
    def use(self, rollouts: Rollouts, how: Callable[[Rollouts], Any]) -> Any:
        return how(rollouts)

    @remote_function(dispatch="slice_dp", collect="flatten", reads="completions", adds=("rewards", "advantages"))
    def grade(self, rollouts: Rollouts) -> Rollouts:
        assert rollouts.completions is not None
        rewards = [float(len(text)) for text in rollouts.completions]
        return rollouts.replace(rewards=rewards, advantages=rewards, finish=["stop"] * len(rewards))

    @remote_function(dispatch="slice_dp", collect="flatten", adds="rewards", replicate=("how",))
    def wrong(self, rollouts: Rollouts, how: Callable[[Rollouts], Any]) -> Any:
        return how(rollouts)


def rollouts(seed: int, rows: int = 5) -> Rollouts:
    rng = random.Random(seed)
    counts = [rng.randrange(3) for _ in range(rows)]
    ids = [[rng.randrange(9) for _ in range(rng.randint(1, 4))] for _ in range(sum(counts))]
    logprobs = [[rng.random() for _ in own] for own in ids]
    texts = [str(own) for own in ids]
    further = {"source": [rng.randrange(5) for _ in counts], "more": [0] * rows}
    return Rollouts(
        ids,
        logprobs=logprobs,
        ref_logprobs=logprobs,
        rewards=[rng.random() for _ in ids],
        counts=counts,
        columns=further,
        prompts=[f"prompt {row}" for row in range(rows)],
        completions=texts,
        temperatures=[0.5] * len(ids),
        truncated_sampling=[True] * len(ids),
    )


@pytest.fixture(scope="module", params=["no session", "threads"])
def stage(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "no session":
        yield Stage()
        return
    with session("threads", groups=[DeviceGroup("a", 3, "CPU")]):
        yield on("a", DeviceMesh.from_sizes(dp_size=3)).create(Stage)


@pytest.fixture(params=["plain", "lazy", "table"])
def given(request: pytest.FixtureRequest, stage: Any) -> Callable[[Any], Any]:
    if request.param == "plain":
        return lambda value: value
    if request.param == "lazy":
        return lambda value: stage.hold(value)
    return lambda value: take(concat([stage.hold(value), value[:0]]), range(len(value)))


UNREAD: list[Callable[[Rollouts], Any]] = [
    lambda one: one.ref_logprobs,
    lambda one: one.tokens["logprobs"].sum(),
    lambda one: list(one.prompts or ()),
    lambda one: [one.temperatures],
    lambda one: list(one.truncated_sampling or ()),
    lambda one: list(one.columns["more"]),
    lambda one: one[:2].ref_logprobs,
    lambda one: one[[-1, 0]].prompts,
    lambda one: [row.logprobs for row in one],
    lambda one: Rollouts.concat([one, one]).ref_logprobs,
    lambda one: one.replace(rewards=None).ref_logprobs,
    lambda one: one.pad()["ref_logprobs"] * 2,
    lambda one: [pack["logprobs"] + 1 for pack in one.pack(64)],
    lambda one: pickle.loads(pickle.dumps(one)).ref_logprobs,
    lambda one: one.pad()["temperatures"].sum(),
    lambda one: one,
    lambda one: select(one, "logprobs"),
]


@pytest.mark.parametrize("how", UNREAD)
def test_a_column_that_is_left_out_is_an_error_and_never_none(stage: Any, given: Any, how: Any) -> None:
    with pytest.raises(KeyError, match="reads"):
        get(stage.use(given(rollouts(1)), how))


def test_the_others_are_there(stage: Any, given: Any) -> None:
    one = rollouts(2)
    found = get(stage.use(given(one), lambda own: select(own, "rewards", "completions", "source")))
    assert found == select(one, "rewards", "completions", "source")
    sums = get(stage.use(given(one), lambda own: own.sequence_rewards()))
    assert torch.equal(sums, one.sequence_rewards())
    assert "left" not in get(stage.use(given(one), lambda own: [repr(own)] * len(own)))[0]
    assert get(stage.use(given(one), lambda own: [own.nbytes >= 0] * len(own))) == [True] * len(one)


def test_bytes_by_column_are_those_of_the_tensors() -> None:
    one = rollouts(3)
    found = bytes_by_column(one)
    assert sum(found.values()) == one.nbytes > 0
    assert found["logprobs"] == one.tokens["logprobs"].nbytes and found["prompts"] == 0
    assert bytes_by_column(only_read(one, Reads(("rewards",), "a")))["logprobs"] == 0, "a mark has no bytes"


def test_added_columns_are_joined_and_others_are_not_kept(stage: Any, given: Any) -> None:
    for seed in range(12):
        one = rollouts(seed, rows=seed % 6)
        expected = [float(len(text)) for text in one.completions or ()]
        graded = stage.grade(given(one))
        assert get(graded) == one.replace(rewards=expected, advantages=expected)
        if component_of(stage) is not None:
            again = get(select(stage.hold(graded), "advantages", "prompts"))
            assert again == select(one.replace(advantages=expected), "advantages", "prompts")


def test_other_sequences_are_an_error(stage: Any, given: Any) -> None:
    for how in (lambda own: own.replace(ids=[ids + 1 for ids in own.ids]), lambda own: own.replace(rewards=None)):
        with pytest.raises((ValueError, KeyError), match=r"sequences|rewards"):
            get(stage.wrong(given(rollouts(3)), how))


def test_the_error_is_one_of_columns() -> None:
    with pytest.raises(UnreadColumnError, match="ref_logprobs"):
        Stage().use(rollouts(1), lambda own: [len(own.ref_logprobs or ())] * len(own))
