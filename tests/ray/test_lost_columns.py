"""Columns that are lost with their worker: in a stream their rows are made again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
from tests.ray.test_columns import Stage

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream


@remote_class()
class Dying(Stage):
    def __init__(self, marker: str) -> None:
        self.marker = Path(marker)

    @remote_function(dispatch="slice_dp", collect="flatten", reads=("wide", "score"), adds="added")
    def annotate(self, rows: dict[str, Any]) -> dict[str, Any]:
        if 14 in rows["score"] and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {**rows, "added": rows["wide"] + np.array(rows["score"])[:, None]}


def test_a_row_of_which_a_column_was_lost_is_made_again(ray_cluster: None, tmp_path: Path) -> None:
    names = ("sampler", "reward")
    with session("ray", groups=[DeviceGroup(name, 2, "CPU") for name in names]):
        mesh = DeviceMesh.from_sizes(dp_size=2)
        sampler, reward = on("sampler", mesh).create(Stage), on("reward", mesh).create(Dying, str(tmp_path / "died"))
        source = [[one] for one in range(16)]
        seen: list[int] = []
        with stream(source, sampler.make, reward.grade, reward.annotate, ahead=8, chunk=1) as batches:
            for batch in batches:
                value = get(batch)
                assert value["score"] == [2 * one for one in value["ids"]]
                assert float(value["added"][0, 0]) == value["score"][0]
                seen += value["ids"]
        assert seen == list(range(16))
        assert (tmp_path / "died").exists()
