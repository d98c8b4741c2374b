"""Rollouts through every dispatch and collect on Ray, without a call that makes their type known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twinkle.engines import Rollouts

pytestmark = pytest.mark.ray


@twinkle.remote_class()
class Engine:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, prompts: list[int], length: int = 3) -> Rollouts:
        """Two sequences of each prompt, of lengths that depend on it; a rank without prompts has no columns."""
        from twinkle.engines import Rollouts

        if not prompts:
            return Rollouts([])
        ids = [[prompt] * (length + prompt % 3 + k) for prompt in prompts for k in range(2)]
        return Rollouts(
            ids,
            rewards=[float(prompt) for prompt in prompts for _ in range(2)],
            counts=[2] * len(prompts),
            prompts=[str(prompt) for prompt in prompts],
            columns={"answer": [prompt * 10 for prompt in prompts]},
        )

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def doubled(self, rollouts: Rollouts, named: dict[str, Rollouts] | None = None) -> Rollouts:
        assert named is None or named["again"] == rollouts
        return rollouts.replace(ids=[2 * ids for ids in rollouts.ids])

    @twinkle.remote_function(dispatch="slice_dp")
    def rows(self, rollouts: Rollouts) -> list[str]:
        return rollouts.prompts or []

    @twinkle.remote_function(dispatch="all", collect="first")
    def whole(self, rollouts: Rollouts) -> int:
        return len(rollouts)


@pytest.fixture(scope="module")
def engine(ray_cluster: None) -> Iterator[Engine]:
    """An engine of two data ranks; meshes with more dims are those of the conformance suite."""
    with twinkle.session("ray", groups=[DeviceGroup("two", 2, "CPU")]):
        yield twinkle.on("two", DeviceMesh.from_sizes(dp_size=2)).create(Engine)


def expected(count: int, length: int = 3) -> Rollouts:
    return Engine.__dict__["sample"](Engine(), list(range(count)), length)  # type: ignore[no-any-return]  # by name


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("length", [3, 20_000], ids=["small", "large"])
def test_what_is_sampled_is_handed_on_and_comes_back_in_order(engine: Engine, count: int, length: int) -> None:
    want = expected(count, length)
    sampled = engine.sample(list(range(count)), length)
    again = engine.doubled(sampled)
    assert twinkle.get(sampled) == want
    assert twinkle.get(again) == want.replace(ids=[2 * ids for ids in want.ids])
    assert twinkle.get(engine.doubled(want, {"again": want})) == twinkle.get(again)
    assert len(again) == count


def test_no_rows_lists_of_ranks_and_whole_rollouts(engine: Engine) -> None:
    assert len(twinkle.get(engine.sample([]))) == 0
    assert twinkle.get(engine.doubled(expected(3)[:0])) == expected(3)[:0]
    assert twinkle.get(engine.rows(expected(3))) == [["0", "1"], ["2"]]
    assert twinkle.get(engine.whole(expected(3))) == twinkle.get(engine.whole(engine.sample([1, 2, 3]))) == 3
