from __future__ import annotations

from importlib.util import find_spec

import pytest

from twinkle.engines import VLLMSampler


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vllm is installed")
def test_without_vllm_the_error_names_the_extra() -> None:
    with pytest.raises(ImportError, match=r"VLLMSampler needs vllm, .*: pip install vllm"):
        VLLMSampler("model")
