"""Engines: real models as components, written with the public decorators.

Each name is loaded from its module on first use, so `import twinkle_engines` loads none of torch, ray and numpy. The
extras `hf` and `vllm` bring the libraries of the engines.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_engines.algorithms.advantage import advantages
    from twinkle_engines.algorithms.agreement import mismatch
    from twinkle_engines.algorithms.grading import rewards
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.batches.supervision import supervised, supervised_packs
    from twinkle_engines.checkpoints.checkpoint import load, save
    from twinkle_engines.models.transformers_model import TransformersModel
    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_engines.samplers.transformers_sampler import TransformersSampler
    from twinkle_engines.samplers.vllm_sampler import VLLMSampler
    from twinkle_engines.tracking.sinks import JSONLSink, MLflowSink, TensorBoardSink, WandbSink
    from twinkle_engines.tracking.throughput import Throughput

__version__ = "0.1.0"

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
    "JSONLSink": "tracking.sinks",
    "MLflowSink": "tracking.sinks",
    "Rollouts": "batches.rollouts",
    "SamplingParams": "samplers.sampling_params",
    "TensorBoardSink": "tracking.sinks",
    "Throughput": "tracking.throughput",
    "TransformersModel": "models.transformers_model",
    "TransformersSampler": "samplers.transformers_sampler",
    "VLLMSampler": "samplers.vllm_sampler",
    "WandbSink": "tracking.sinks",
    "advantages": "algorithms.advantage",
    "load": "checkpoints.checkpoint",
    "mismatch": "algorithms.agreement",
    "rewards": "algorithms.grading",
    "save": "checkpoints.checkpoint",
    "supervised": "batches.supervision",
    "supervised_packs": "batches.supervision",
}
"""The module of each name."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
