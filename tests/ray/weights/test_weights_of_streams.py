"""The versions of a stream are those of the syncs into what makes its rows."""

from __future__ import annotations

import logging
import threading
import time
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


def test_lag_counts_the_versions_of_what_a_stage_calls(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    trainer, sampler = on("trainer").create(Model), on("sampler").create(Model)
    agent, sync = on("agent").create(Agent, sampler), WeightSync(trainer, sampler)
    with stream(SOURCE, agent.play, ahead=ahead, max_lag=1, weights_of=sampler) as batches:
        for number, _ in enumerate(batches, 1):
            assert sync() == batches.version == number
        assert batches.stats().worst_lag == (1 if ahead else 0)
    with caplog.at_level(logging.WARNING), stream(SOURCE, agent.play, ahead=ahead, max_lag=1) as batches:
        for _ in batches:
            sync()
    assert [record.getMessage().count("weights_of") for record in caplog.records] == [1]


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
        batches.load_state_dict({**state, "open": [], "read": 0, "source": None})
        first.load_state_dict(versions[0])
        second.load_state_dict(versions[1])
        second()
        with pytest.raises(ValueError, match="no weights"):
            next(batches)
        first()
        next(batches)
        assert batches.info is not None
        assert min(batches.info.begun) == second.version


def test_syncs_under_way_have_numbers_of_their_own(ahead: int, caplog: pytest.LogCaptureFixture) -> None:
    trainer, sampler, other = (on(name).create(Model) for name in ("trainer", "sampler", "other"))
    first, second = WeightSync(trainer, sampler), WeightSync(trainer, other)
    with stream(SOURCE, sampler.sample, other.again, ahead=ahead) as batches:
        next(batches)
        one, two = first.start(), second.start()
        assert (one.result(), two.result()) == (1, 2) == (first.version, batches.version)
        one, two = first.start(), second.start()
        with caplog.at_level(logging.WARNING):
            assert two.result() == batches.version == 4
            assert one.result() == 3
        assert batches.version == 5
        assert "weights of version 3 arrived after version 4" in caplog.text
        assert first() == batches.version == 6
    apart = on("agent").create(Model)
    with stream(SOURCE, apart.sample, ahead=ahead) as batches:
        next(batches)
        assert WeightSync(trainer, apart)() == batches.version == 1, "other streams have their own numbers"


_leave = threading.Event()


@remote_class()
class Held(Model):
    """Its weights wait to be asked for."""

    def weights(self) -> Mapping[str, torch.Tensor]:
        self.wait_for_a_sign()
        return super().weights()

    def wait_for_a_sign(self) -> None:
        _leave.wait(30)


@pytest.mark.parametrize("started", [False, True])
def test_a_sync_that_takes_long_is_named_once(ahead: int, caplog: pytest.LogCaptureFixture, started: bool) -> None:
    sampler = on("sampler").create(Model)
    sync = WeightSync(on("trainer").create(Held), sampler, patience=0.2)
    _leave.clear()

    def leave_when_told() -> None:
        until = time.monotonic() + 20
        while not caplog.records and time.monotonic() < until:
            time.sleep(0.02)
        _leave.set()

    with caplog.at_level(logging.WARNING), stream(SOURCE, sampler.sample, ahead=ahead) as batches:
        next(batches)
        threading.Thread(target=leave_when_told, daemon=True).start()
        assert (sync.start().result() if started else sync()) == 1
        assert sync() == 2
    assert len(caplog.messages) == 1
    assert "WeightSync into Model on group 'sampler'" in caplog.messages[0]
    assert "Held" in caplog.messages[0] and "wait_for_a_sign" in caplog.messages[0]


@pytest.mark.parametrize("patience", [0, -1.0, True, "60"])
def test_the_patience_of_a_sync_is_seconds(ahead: int, patience: Any) -> None:
    with pytest.raises(ValueError, match="patience"):
        WeightSync(Model(), Model(), patience=patience)


@pytest.mark.parametrize("wrong", [3, "sampler", [object()]])
def test_weights_are_of_components(wrong: Any) -> None:
    with pytest.raises(TypeError, match="weights_of"):
        stream(SOURCE, lambda rows: rows, weights_of=wrong)
