"""Dtypes of weights: bits of rare ones arrive, and a cast that would drop a part of each value is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from twinkle_ray.weights import ManifestError, WeightSync

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


class Named:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def weights(self) -> Mapping[str, Tensor]:
        return self.tensors


@pytest.mark.parametrize(
    ("here", "there"), [("float32", "int8"), ("int64", "bool"), ("complex64", "float32"), ("bfloat16", "bool")]
)
def test_a_cast_that_drops_a_part_of_each_value_is_refused(here: str, there: str) -> None:
    source = Named({"w": torch.ones(3, dtype=getattr(torch, here))})
    target = Named({"w": torch.zeros(3, dtype=getattr(torch, there))})
    with pytest.raises(ManifestError, match="drop a part"):
        WeightSync(source, target, convert=True)()
    assert not target.tensors["w"].any()


@pytest.mark.parametrize("dtype", ["float4_e2m1fn_x2", "float8_e8m0fnu", "float8_e5m2fnuz", "uint64", "int8", "bool"])
def test_bits_of_rare_dtypes_arrive(dtype: str) -> None:
    kind = getattr(torch, dtype, None)
    if kind is None:
        pytest.skip(f"this torch has no {dtype}")
    given = (torch.arange(64) % 2).to(torch.uint8).view(kind)
    target = Named({"w": torch.zeros(64, dtype=torch.uint8).view(kind)})
    sync = WeightSync(Named({"w": given}), target)
    sync()
    given.view(torch.uint8)[0] = 1
    sync()
    assert target.tensors["w"].view(torch.uint8).equal(given.view(torch.uint8))
