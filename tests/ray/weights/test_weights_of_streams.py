"""The versions of a stream are those of the syncs into what makes its rows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_mesh import DeviceGroup
from twinkle_ray import WeightSync
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@remote_class()
class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(2)
        self.version = 0

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": self.weight}

    def on_weights(self, version: int) -> None:
        self.version = version

    @remote_function(dispatch="slice_dp", collect="flatten")
    def again(self, rows: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        return [(*row, self.version) for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, int]]:
        return [(row, self.version) for row in rows]


@remote_class()
class Agent:
    def __init__(self, sampler: Model) -> None:
        self.sampler = sampler

    @remote_function(dispatch="slice_dp", collect="flatten")
    def play(self, rows: list[int]) -> list[tuple[int, int]]:
        return [found for row in rows for found in get(self.sampler.sample([row]))]


@pytest.fixture(params=[0, 4])
def ahead(request: pytest.FixtureRequest) -> Iterator[int]:
    groups = [DeviceGroup(name, 1, "CPU") for name in ("trainer", "sampler", "other", "agent")]
    with session("threads", groups=groups):
        yield request.param


SOURCE = [[row, row + 1] for row in range(0, 20, 2)]


def test_rows_are_begun_with_the_versions_that_the_sampler_knows(ahead: int) -> None:
    trainer, sampler = on("trainer").create(Model), on("sampler").create(Model)
    sync = WeightSync(trainer, sampler)
    sync()
    sync()
    with stream(SOURCE, sampler.sample, ahead=ahead, max_lag=1) as batches:
        for batch in batches:
            assert batches.version == sync.version
            assert batches.info is not None
            assert all(begun <= version for begun, (_, version) in zip(batches.info.begun, get(batch), strict=True))
            sync()
    assert min(batches.info.begun) >= 2 if batches.info is not None else False


def test_a_load_without_a_sync_is_an_error(ahead: int) -> None:
    trainer, sampler, other = (on(name).create(Model) for name in ("trainer", "sampler", "other"))
    sync = WeightSync(trainer, sampler)
    with stream(SOURCE, sampler.sample, ahead=ahead) as batches:
        for _ in range(3):
            next(batches)
            sync()
        state, version = batches.state_dict(), sync.state_dict()
    sync = WeightSync(trainer, other)
    with stream(SOURCE, other.sample, ahead=ahead) as batches:
        batches.load_state_dict(state)
        with pytest.raises(ValueError, match="WeightSync"):
            next(batches)
        sync.load_state_dict(version)
        with pytest.raises(ValueError, match="version 3"):
            next(batches)
        assert sync() == 4
        assert list(get(next(batches))) == [(6, 4), (7, 4)]
        assert batches.info is not None
        assert (batches.info.begun, batches.info.lag) == ([4, 4], [0, 0])
        batches.load_state_dict(state)
        assert list(get(next(batches))) == [(6, 4), (7, 4)]


def test_lag_counts_the_versions_of_what_a_stage_calls(ahead: int) -> None:
    trainer, sampler = on("trainer").create(Model), on("sampler").create(Model)
    agent, sync = on("agent").create(Agent, sampler), WeightSync(trainer, sampler)
    with stream(SOURCE, agent.play, ahead=ahead, max_lag=1, weights_of=sampler) as batches:
        for number, _ in enumerate(batches, 1):
            assert sync() == batches.version == number
        assert batches.stats().worst_lag == (1 if ahead else 0)


def test_syncs_into_two_components_have_one_numbering(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    trainer, sampler, other = (on(name).create(Model) for name in ("trainer", "sampler", "other"))
    first, second = WeightSync(trainer, sampler), WeightSync(trainer, other)
    for _ in range(3):
        first()
    assert second() == 1, "before the stream each has its own"
    options: Any = {"ahead": ahead, "max_lag": 1}
    with caplog.at_level(logging.WARNING), stream(SOURCE, sampler.sample, other.again, **options) as batches:
        for number, batch in enumerate(batches):
            info = batches.info
            assert info is not None
            for begun, ended, (_, *known) in zip(info.begun, info.ended, get(batch), strict=True):
                assert begun >= 3
                assert all(version <= ended for version in known)
                assert number == 0 or begun - 1 <= max(known)
            assert first() == batches.version == 4 + 2 * number
            assert second() == batches.version == 5 + 2 * number
        state, versions = batches.state_dict(), (first.state_dict(), second.state_dict())
    assert caplog.messages == []
    first, second = WeightSync(trainer, sampler), WeightSync(trainer, other)
    with stream(SOURCE, sampler.sample, other.again, ahead=ahead) as batches:
        batches.load_state_dict({**state, "row": 0, "pass_first": 0, "gone": []})
        first.load_state_dict(versions[0])
        second.load_state_dict(versions[1])
        second()
        with pytest.raises(ValueError, match="no weights"):
            next(batches)
        first()
        next(batches)
        assert batches.info is not None
        assert min(batches.info.begun) == second.version
