"""A sync into a stage of a stream publishes a version to the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray import WeightSync
from twinkle_remote import get, on, remote_class, remote_function, session, stream

if TYPE_CHECKING:
    from collections.abc import Mapping


@remote_class()
class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": self.weight}

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[tuple[int, float]]:
        return [(row, float(self.weight[0])) for row in rows]

    @remote_function(dispatch="all", collect="first")
    def update(self, batch: object) -> None:
        self.weight += 1.0


def test_a_sync_publishes_a_version_and_rows_are_made_with_it() -> None:
    groups = [DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU"), DeviceGroup("other", 1, "CPU")]
    with session("threads", groups=groups):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model)
        actor, other = on("actor").create(Model), on("other").create(Model)
        sync, elsewhere = WeightSync(actor, sampler), WeightSync(actor, other)
        source = [list(range(at, at + 4)) for at in range(0, 40, 4)]
        with stream(source, sampler.sample, rows=4, ahead=12, order="arrival", max_lag=1) as batches:
            for number, batch in enumerate(batches, 1):
                info = batches.info
                assert info is not None
                for (row, weight), index, begun in zip(get(batch), info.indices, info.begun, strict=True):
                    assert row == index
                    assert begun <= weight, "a row is made with the weights of its version, or newer ones"
                get(actor.update(batch))
                elsewhere()
                assert batches.version == number - 1
                assert sync() == batches.version == number
            assert batches.stats().worst_lag == 1
