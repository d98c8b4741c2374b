"""Streams on a group: their epochs are the passes of a plain loop, also after a resume."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.data.sources import test_carried_state as stateless
from tests.data.sources import test_next_passes as stateful

from twinkle_data import DataLoader
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, session


@pytest.mark.parametrize("kind", [stateless.Counting, stateless.Drawing, stateful.Counting, stateful.Resuming])
def test_epochs_are_those_of_a_plain_loop(kind: Any) -> None:
    plain = kind()
    expected = [list(plain) for _ in range(3)]
    for mesh in (None, DeviceMesh.from_sizes(dp_size=2)):
        told: list[list[int]] = []
        state: dict[str, Any] | None = None
        for epochs in (2, 1):
            with session("threads", groups=[DeviceGroup("data", 2, "CPU")]):
                loader: DataLoader[Any] = DataLoader(kind(), batch_size=4, device_mesh=mesh, remote_group="data")
                if state is not None:
                    loader.load_state_dict(state)
                told += [[row for batch in loader for row in get(batch)] for _ in range(epochs)]
                state = json.loads(json.dumps(loader.state_dict()))
        assert told == expected
