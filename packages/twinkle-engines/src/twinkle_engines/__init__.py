"""Engines: real models as components, written with the public decorators.

Each name is loaded from its module on first use, so `import twinkle_engines` loads none of torch, ray and numpy. The
extras `hf` and `vllm` bring the libraries of the engines.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle_engines.agents.episodes import Action as Action
    from twinkle_engines.agents.episodes import Environment as Environment
    from twinkle_engines.agents.episodes import Episodes as Episodes
    from twinkle_engines.agents.episodes import ToolCall as ToolCall
    from twinkle_engines.agents.gateway import Gateway as Gateway
    from twinkle_engines.algorithms.advantages import Advantages as Advantages
    from twinkle_engines.algorithms.advantages import advantages as advantages
    from twinkle_engines.algorithms.advantages import overlong as overlong
    from twinkle_engines.algorithms.advantages import rewards_differ as rewards_differ
    from twinkle_engines.algorithms.correction import Correction as Correction
    from twinkle_engines.algorithms.correction import mismatch as mismatch
    from twinkle_engines.algorithms.grading import evaluate as evaluate
    from twinkle_engines.algorithms.grading import rewards as rewards
    from twinkle_engines.batches.rollouts import Rollouts as Rollouts
    from twinkle_engines.batches.supervised import preferences as preferences
    from twinkle_engines.batches.supervised import supervised as supervised
    from twinkle_engines.checkpoints.checkpoint import Checkpoints as Checkpoints
    from twinkle_engines.checkpoints.checkpoint import load as load
    from twinkle_engines.checkpoints.checkpoint import save as save
    from twinkle_engines.checkpoints.sinks import JSONLSink as JSONLSink
    from twinkle_engines.checkpoints.sinks import RolloutSink as RolloutSink
    from twinkle_engines.checkpoints.sinks import TensorBoardSink as TensorBoardSink
    from twinkle_engines.checkpoints.sinks import WandbSink as WandbSink
    from twinkle_engines.models.tiny import tiny_model as tiny_model
    from twinkle_engines.models.transformers_model import TransformersModel as TransformersModel
    from twinkle_engines.samplers.components import TransformersSampler as TransformersSampler
    from twinkle_engines.samplers.components import VLLMSampler as VLLMSampler
    from twinkle_engines.samplers.sampler import SamplingParams as SamplingParams
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)

__version__ = "0.1.0"
