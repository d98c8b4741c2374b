"""Engines: real models as components, written with the public decorators.

Each name is loaded from its module on first use, so `import twinkle` loads nothing of it. The extras `hf` and
`vllm` of twinkle-all bring the libraries of the engines.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle.engines.advantage import advantages
    from twinkle.engines.agreement import mismatch
    from twinkle.engines.checkpoint import load, save
    from twinkle.engines.grading import rewards
    from twinkle.engines.rollouts import Rollouts
    from twinkle.engines.sampling_params import SamplingParams
    from twinkle.engines.sinks import JSONLSink, MLflowSink, TensorBoardSink, WandbSink
    from twinkle.engines.supervision import supervised, supervised_packs
    from twinkle.engines.throughput import Throughput
    from twinkle.engines.transformers_model import TransformersModel
    from twinkle.engines.transformers_sampler import TransformersSampler
    from twinkle.engines.vllm_sampler import VLLMSampler

__all__ = [
    "JSONLSink",
    "MLflowSink",
    "Rollouts",
    "SamplingParams",
    "TensorBoardSink",
    "Throughput",
    "TransformersModel",
    "TransformersSampler",
    "VLLMSampler",
    "WandbSink",
    "advantages",
    "load",
    "mismatch",
    "rewards",
    "save",
    "supervised",
    "supervised_packs",
]

_HOMES = {
    "JSONLSink": "sinks",
    "MLflowSink": "sinks",
    "Rollouts": "rollouts",
    "SamplingParams": "sampling_params",
    "TensorBoardSink": "sinks",
    "Throughput": "throughput",
    "TransformersModel": "transformers_model",
    "TransformersSampler": "transformers_sampler",
    "VLLMSampler": "vllm_sampler",
    "WandbSink": "sinks",
    "advantages": "advantage",
    "load": "checkpoint",
    "mismatch": "agreement",
    "rewards": "grading",
    "save": "checkpoint",
    "supervised": "supervision",
    "supervised_packs": "supervision",
}
"""The module of each name; a module has another name than what it defines, so that neither hides the other."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
