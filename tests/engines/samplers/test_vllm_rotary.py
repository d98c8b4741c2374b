from __future__ import annotations

from typing import Any

import pytest
from tiny_models import CONFIGS, SIZES
from transformers import LlamaConfig
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.phi3.configuration_phi3 import Phi3Config

from twinkle_engines.samplers.vllm_rotary import check_rotary

FACTORS: dict[str, Any] = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
LONG = Phi3Config(
    **SIZES,
    pad_token_id=0,
    original_max_position_embeddings=16,
    rope_parameters={"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 16, **FACTORS},
)


def scaled(kind: str, **more: Any) -> LlamaConfig:
    return LlamaConfig(**SIZES, rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **more})


@pytest.mark.parametrize(("config", "border"), [(LONG, 16), (scaled("dynamic", factor=4.0), 64)])
def test_an_engine_that_is_longer_than_the_border_of_its_model_is_refused(config: Any, border: int) -> None:
    check_rotary(config, border)
    with pytest.raises(ValueError, match=f"use max_model_len={border}"):
        check_rotary(config, border + 1)


def test_angles_that_are_the_same_for_every_length_are_taken() -> None:
    same = [scaled("linear", factor=4.0), scaled("yarn", factor=4.0), scaled("dynamic", alpha=4.0, factor=1.0)]
    gemma = Gemma3TextConfig(**{name: value for name, value in SIZES.items() if name != "initializer_range"})
    for config in (*same, gemma, *CONFIGS.values()):
        check_rotary(config, 1 << 20)
