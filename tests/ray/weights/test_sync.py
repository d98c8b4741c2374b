"""A sync between objects of one process: names, subsets, dtypes, ties, what is refused."""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch

from twinkle_ray.weights import ManifestError, WeightSync

if TYPE_CHECKING:
    from torch import Tensor


class Named:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors

    def weights(self) -> dict[str, Tensor]:
        return self.tensors


def test_names_are_mapped_by_a_function() -> None:
    source = Named({"model.a": torch.ones(2), "model.b": torch.ones(2) * 2, "value_head": torch.zeros(1)})
    target = Named({"a": torch.zeros(2), "b": torch.zeros(2)})
    WeightSync(source, target, rename=lambda name: name.removeprefix("model.") if "." in name else None)()
    assert target.tensors["a"].tolist() == [1, 1] and target.tensors["b"].tolist() == [2, 2]


@pytest.mark.parametrize("select", ["*.lora_*", ["x.lora_a"], lambda name: "lora" in name])
def test_a_subset_leaves_the_rest_as_it_is(select: Any) -> None:
    source = Named({"x.lora_a": torch.ones(2), "x.base": torch.ones(2)})
    target = Named({"x.lora_a": torch.zeros(2), "x.base": torch.zeros(3)})
    WeightSync(source, target, select=select)()
    assert target.tensors["x.lora_a"].tolist() == [1, 1] and target.tensors["x.base"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("here", "there"), [("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "float8_e4m3fn")]
)
def test_dtypes_are_converted_on_request(here: str, there: str) -> None:
    def build(dtype: str) -> Tensor:
        return torch.linspace(-4, 4, 33).to(getattr(torch, dtype))

    source, target = Named({"w": build(here)}), Named({"w": torch.zeros(33, dtype=getattr(torch, there))})
    with pytest.raises(ManifestError, match=f"'w': {here} at the source, {there} at the target \\(convert=True"):
        WeightSync(source, target)()
    sync = WeightSync(source, target, convert=True)
    sync()
    assert target.tensors["w"].equal(build(here).to(getattr(torch, there)))
    sync.start().result()
    assert target.tensors["w"].equal(build(here).to(getattr(torch, there)))


def test_tied_tensors_are_sent_once() -> None:
    shared = torch.arange(6.0)
    source = Named({"embed": shared, "head": shared, "other": torch.ones(1)})
    untied = Named({"embed": torch.zeros(6), "head": torch.zeros(6), "other": torch.zeros(1)})
    sync = WeightSync(source, untied)
    sync()
    assert untied.tensors["embed"].equal(shared) and untied.tensors["head"].equal(shared)
    assert sync.delivery is not None and sync.delivery.moved == 4 * 7
    memory = torch.zeros(6)
    tied = Named({"embed": memory, "head": memory, "other": torch.zeros(1)})
    sync = WeightSync(source, tied)
    sync()
    assert memory.equal(shared)
    assert sync.delivery is not None and sync.delivery.moved == 4 * 7
    memory.zero_()
    WeightSync(Named({"embed": shared, "other": torch.ones(1)}), tied)()
    assert memory.equal(shared)
    memory.zero_()
    WeightSync(source, Named({"embed": memory, "other": torch.zeros(1)}))()
    assert memory.equal(shared)


def test_a_parameter_that_needs_gradients_is_written_in_place() -> None:
    source, target = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    pointers = [parameter.data_ptr() for parameter in target.parameters()]
    a, b = (Named(dict(layer.named_parameters())) for layer in (source, target))
    WeightSync(a, b)()
    assert all(mine.equal(other) for mine, other in zip(source.parameters(), target.parameters(), strict=True))
    assert [parameter.data_ptr() for parameter in target.parameters()] == pointers
    target(torch.ones(3)).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("check", ["first", "never"])
def test_dims_of_one_element_have_any_stride(dtype: torch.dtype, check: Any) -> None:
    whole = torch.arange(8, dtype=dtype).reshape(2, 4) + 1
    source, target = Named({"row": whole[:1].t(), "one": whole[::2, ::4]}), torch.zeros(2, 4, dtype=dtype)
    WeightSync(source, Named({"row": target[:1].t(), "one": target[1:, ::4]}), check=check)()
    assert target.tolist() == [[1, 2, 3, 4], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "'b' is not in the source (on rank 0 of the target)"),
        ({"a": torch.ones(2)}, {"b": torch.ones(2)}, "not in the target: 'a' (rename= to None or select= leaves"),
        ({"a": torch.ones(2)}, {"a": torch.ones(3)}, "'a': shape (2,) at the source, (3,) at the target"),
        ({"a": torch.ones(2)}, {"a": torch.ones(2).int()}, "'a': float32 at the source, int32 at the target"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_moves(
    source: dict[str, Tensor], target: dict[str, Tensor], message: str
) -> None:
    before = copy.deepcopy(target)
    sync = WeightSync(Named(source), Named(target))
    with pytest.raises(ManifestError, match=re.escape(message)):
        sync()
    assert all(target[name].equal(before[name]) for name in before)
    assert sync.version == 0


def test_a_component_without_weights_is_told_what_to_have() -> None:
    with pytest.raises(TypeError, match=r"weights\(\)"):
        WeightSync(object(), Named({}))()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": "smoke"}, "transport='smoke' is none of None, 'store', 'nccl'"),
        ({"timeout": 0}, "timeout must be above 0 seconds, got 0"),
    ],
)
def test_options_are_checked_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightSync(Named({}), Named({}), **options)
