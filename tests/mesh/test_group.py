from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch

from twinkle_mesh import DeviceGroup


def test_a_group_of_devices() -> None:
    group = DeviceGroup(name="actor", ranks=[4, 5, 6, 7], device_type="cuda", gpus_per_worker=2)
    assert (group.device_type, group.ranks, group.devices) == ("GPU", (4, 5, 6, 7), (4, 5, 6, 7))
    assert (group.num_ranks, group.num_workers, group.visible) == (4, 2, None)
    assert group == DeviceGroup("actor", (4, 5, 6, 7), "gpu", gpus_per_worker=2)
    assert DeviceGroup("actor", range(4), "NPU").ranks == (0, 1, 2, 3)
    counted = DeviceGroup("loader", 3, "cpu")
    assert (counted.device_type, counted.ranks, counted.devices, counted.num_workers) == ("CPU", 3, None, 3)
    visible = DeviceGroup("sampler", 2, "GPU", visible_devices="8, 9")
    assert (visible.visible_devices, visible.visible) == ("8,9", (8, 9))


def test_any_integer_type_counts() -> None:
    plain = DeviceGroup("actor", [0, 1, 2, 3], "GPU", gpus_per_worker=2)
    for ranks in (np.arange(4), list(np.arange(4)), torch.arange(4), (np.int32(0), 1, np.uint8(2), 3)):
        group = DeviceGroup("actor", ranks, "GPU", gpus_per_worker=np.int64(2))  # type: ignore[arg-type]  # as callers do
        assert group == plain
        assert repr(group) == repr(plain)
        assert [type(rank) for rank in group.devices or ()] == [int] * 4
    assert DeviceGroup("loader", np.int64(3), "CPU") == DeviceGroup("loader", 3, "CPU")  # type: ignore[arg-type]  # too


def test_a_group_is_a_value() -> None:
    group = DeviceGroup("actor", 8, "GPU")
    assert pickle.loads(pickle.dumps(group)) == group
    assert len({group, DeviceGroup("actor", 8, "cuda")}) == 1
    assert dataclasses.replace(group, ranks=4).num_workers == 4
    with pytest.raises(dataclasses.FrozenInstanceError):
        group.ranks = 4  # type: ignore[misc]  # the point of the test


def test_a_group_on_a_number_of_nodes() -> None:
    assert DeviceGroup("actor", 8, "GPU").nodes is None
    group = DeviceGroup("actor", 8, "GPU", gpus_per_worker=2, nodes=np.int64(4))  # type: ignore[arg-type]  # as callers do
    assert group.nodes == 4 and type(group.nodes) is int
    assert group != dataclasses.replace(group, nodes=None) == DeviceGroup("actor", 8, "GPU", gpus_per_worker=2)
    assert pickle.loads(pickle.dumps(group)) == group and "nodes=4" in repr(group)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": ""}, "name='' must be a word, because remote_group= uses it"),
        ({"ranks": 0}, "ranks=0 must be at least 1"),
        ({"ranks": []}, "ranks=[] must name at least one device"),
        ({"ranks": [0, 0]}, "ranks=[0, 0] must name at least one device, and each once"),
        ({"ranks": [0, -1]}, "ranks=-1 must be at least 0"),
        ({"ranks": [0, "1"]}, "ranks='1' must be a whole number"),
        ({"ranks": True}, "ranks=True must be a whole number"),
        ({"ranks": [0, 1], "device_type": "CPU"}, "a CPU group has no devices: use a number such as ranks=2"),
        ({"device_type": ""}, "device_type='' must name the hardware; use 'GPU', 'CPU' or 'NPU'"),
        ({"device_type": "GPU:0"}, "device_type='GPU:0' must name the hardware"),
        ({"gpus_per_worker": 3}, "gpus_per_worker=3 does not divide ranks=4; use 1, 2 or 4"),
        ({"gpus_per_worker": 0}, "gpus_per_worker=0 must be at least 1"),
        (
            {"device_type": "CPU", "gpus_per_worker": 2},
            "a CPU group has no devices: use a number such as ranks=4",
        ),
        ({"visible_devices": "8,x"}, "visible_devices='8,x' must be device indices, such as"),
        ({"visible_devices": "8,8,9,10"}, "visible_devices=[8, 8, 9, 10] must name at least one device, and each once"),
        ({"visible_devices": "8,9"}, "ranks asks for 4 devices, but visible_devices='8,9' has 2"),
        ({"device_type": "CPU", "visible_devices": "0,1,2,3"}, "a CPU group has no devices"),
        ({"nodes": 0}, "nodes=0 must be at least 1; use 1"),
        ({"nodes": "2"}, "nodes='2' must be a whole number"),
        ({"nodes": True}, "nodes=True must be a whole number"),
        ({"ranks": 8, "nodes": 3}, "nodes=3 does not divide the 8 workers of the group; use 1, 2, 4 or 8"),
        ({"gpus_per_worker": 2, "nodes": 4}, "nodes=4 does not divide the 2 workers of the group; use 1 or 2"),
        (
            {"ranks": [4, 5], "nodes": 2},
            "nodes=2 needs a number of ranks: named devices name their nodes",
        ),
        (
            {"visible_devices": "0,1,8,9", "nodes": 2},
            "nodes=2 needs a number of ranks",
        ),
    ],
)
def test_errors(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        DeviceGroup(**{"name": "actor", "ranks": 4, "device_type": "GPU", **arguments})
