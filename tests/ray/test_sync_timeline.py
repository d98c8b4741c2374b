"""Weight syncs on the timeline of a session."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_ray import WeightSync

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@twinkle.remote_class()
class Model:
    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def weights(self) -> Mapping[str, torch.Tensor]:
        return {"weight": self.weight}

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, rows: list[int]) -> list[int]:
        return rows


def test_weight_syncs_take_their_time_on_the_timeline(tmp_path: Path) -> None:
    with twinkle.session("threads", groups=[DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU")]):
        sampler, actor = twinkle.on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model), Model()
        sync = WeightSync(actor, sampler)
        with twinkle.stream([[0, 1]] * 3, sampler.sample, rows=2, ahead=2) as batches:
            for batch in batches:
                twinkle.get(batch)
                sync()
        path = twinkle.write_timeline(tmp_path / "calls.json")
    events = json.loads(path.read_text())["traceEvents"]
    syncs = [event for event in events if event.get("cat") == "sync"]
    assert [event["name"] for event in syncs] == ["weights of sampler: Model"] * 3
    assert all(event["dur"] > 0 for event in syncs)
    rows = [event["name"] for event in events if str(event.get("name")).startswith("Model.sample row")]
    assert rows, "calls of stages are named by their rows"
