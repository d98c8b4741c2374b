"""Engines: real models as components; the names of twinkle-engines.

Each name is loaded from its package on first use, so `import twinkle` loads nothing of it. The extras `hf` and
`vllm` of twinkle-all bring the libraries of the engines.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_engines import (
        JSONLSink,
        MLflowSink,
        Rollouts,
        SamplingParams,
        TensorBoardSink,
        Throughput,
        TransformersModel,
        TransformersSampler,
        VLLMSampler,
        WandbSink,
        advantages,
        load,
        mismatch,
        rewards,
        save,
        supervised,
        supervised_packs,
    )

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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import twinkle_engines

    value: object = getattr(twinkle_engines, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
