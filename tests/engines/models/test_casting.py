from __future__ import annotations

import json
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import Build, sgd
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from twinkle.engines import TransformersModel
from twinkle_engines.models.pretrained import build_model

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ["bfloat16", "float16", "float32", "float64"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("given", ["float32", "bfloat16", "cast"])
@pytest.mark.parametrize("family", ["llama", "qwen3-moe"])
def test_a_function_gives_the_model_of_its_folder(tmp_path: Path, family: str, given: str, kind: str) -> None:
    short: Any = Build(family)().to(torch.bfloat16)  # so that nothing is lost on the way
    short.config = deepcopy(short.config)  # which Transformers writes the dtype into
    short.save_pretrained(tmp_path)

    def made() -> Any:
        model: Any = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="float32" if given == "cast" else given)
        return model.to(torch.bfloat16) if given == "cast" else model

    function, folder = (build_model(source, kind, None) for source in (made, tmp_path))
    pairs = [
        *zip(function.named_parameters(), folder.named_parameters(), strict=True),
        *zip(function.named_buffers(), folder.named_buffers(), strict=True),
    ]
    for (name, own), (_, other) in pairs:
        assert own.dtype == other.dtype and torch.equal(own, other), name
    assert function.config.dtype == folder.config.dtype
    if (family, kind) == ("qwen3-moe", "float64"):
        return  # torch multiplies no groups in it
    ids = torch.arange(40)[None]
    assert_close(function(ids).logits, folder(ids).logits, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_adapters_of_a_function_are_as_wide_as_those_of_a_folder() -> None:
    lora = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    own = build_model(lambda: get_peft_model(Build("llama")(), lora), "bfloat16", None)
    other = build_model(lambda: Build("llama")(), "bfloat16", lora)
    assert [(n, p.dtype) for n, p in own.named_parameters()] == [(n, p.dtype) for n, p in other.named_parameters()]


def test_the_exported_config_says_the_dtype_of_the_weights(tmp_path: Path) -> None:
    TransformersModel(lambda: Build("llama")().to(torch.bfloat16), optimizer=sgd).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "float32"


def test_the_config_of_a_function_stays_as_it_is() -> None:
    model = Build("llama")()
    config = model.config
    before = config.to_dict()
    build_model(lambda: model, "bfloat16", None)
    assert config.to_dict() == before
