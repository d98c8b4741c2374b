from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from twinkle_ray.weights import ManifestError, WeightSync
from twinkle_ray.weights.planning.manifest import rename_hint

NAMES = ["layers.0.attn.weight", "layers.0.mlp.up.bias", "layers.11.mlp.up.weight", "head.weight"]


class Named:
    def __init__(self, names: list[str]) -> None:
        self.tensors = {name: torch.full((2,), float(number)) for number, name in enumerate(names)}

    def weights(self) -> dict[str, Any]:
        return self.tensors


def wrapped(how: str, name: str) -> str:
    """A name as wrappers of modules give it: around the whole model, or around each layer."""
    return {
        "compiled": "_orig_mod." + name,
        "ddp": "module." + name,
        "both": "module._orig_mod." + name,
        "layers": re.sub(r"^(layers\.\d+\.)", r"\1_orig_mod.", name),
        "checkpointed": re.sub(r"^(layers\.\d+\.)", r"\1_checkpoint_wrapped_module.", name),
    }[how]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("how", ["compiled", "ddp", "both", "layers", "checkpointed"])
def test_the_hint_makes_the_sync_work(how: str, turned: bool) -> None:
    outer = [wrapped(how, name) for name in NAMES]
    source, target = (NAMES, outer) if turned else (outer, NAMES)
    with pytest.raises(ManifestError, match="not in the target") as caught:
        WeightSync(Named(source), Named(target))()
    found = re.search(r"rename=(lambda name: .*) gives", str(caught.value))
    if turned and how in ("layers", "checkpointed"):
        assert found is None  # no short function puts words into the middle of names
        return
    assert found is not None
    assert WeightSync(Named(source), Named(target), rename=eval(found[1]))() == 1


def test_no_hint_for_other_weights() -> None:
    assert rename_hint({"a.b"}, {"c.d"}) == rename_hint(set(), {"a"}) == rename_hint({"a"}, set()) == ""
