"""Columns that go whole beside rows that are divided: `replicate=("argument.column",)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import DispatchError, get, on, remote_class, remote_function, session


@dataclass
class Packed:
    ids: torch.Tensor
    offsets: torch.Tensor


@remote_class()
class Model:
    @remote_function(dispatch="slice_dp", collect="none", replicate=("batch.offsets",))
    def shapes(self, batch: Any) -> tuple[int, int]:
        ids, offsets = (batch.ids, batch.offsets) if isinstance(batch, Packed) else (batch["ids"], batch["offsets"])
        return len(ids), len(offsets)

    @remote_function(dispatch="slice_dp", collect="none")
    def divided(self, batch: Any) -> int:
        return len(batch["ids"])


@pytest.mark.parametrize("rows", [1, 4, 5])
@pytest.mark.parametrize("kind", [dict, Packed])
def test_a_named_column_goes_whole(rows: int, kind: Any) -> None:
    batch = kind(ids=torch.arange(rows), offsets=torch.arange(7))
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        model = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Model)
        assert get(model.shapes(batch)) == [((rows + 1) // 2, 7), (rows // 2, 7)]
        assert get(model.shapes({"ids": [1, 2], "offsets": [3]})) == [(1, 1), (1, 1)]
        with pytest.raises(DispatchError, match="rows"):
            model.divided({"ids": torch.arange(4), "offsets": torch.arange(7)})


def test_the_argument_of_a_column_exists() -> None:
    with pytest.raises(TypeError, match="replicate"):

        @remote_class()
        class Wrong:
            @remote_function(replicate=("other.offsets",))
            def shapes(self, batch: Any) -> None: ...
