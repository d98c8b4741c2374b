"""Engines: real models as components; the names of twinkle-engines.

Each name is loaded from its package on first use, so `import twinkle` loads nothing of it. The extras `hf` and
`vllm` of twinkle-all bring the libraries of the engines.
"""

from __future__ import annotations

from twinkle_mesh import load_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from twinkle.cli.rollout_page import rollout_page as rollout_page
    from twinkle_engines import Action as Action
    from twinkle_engines import Advantages as Advantages
    from twinkle_engines import Checkpoints as Checkpoints
    from twinkle_engines import Correction as Correction
    from twinkle_engines import Environment as Environment
    from twinkle_engines import Episodes as Episodes
    from twinkle_engines import Gateway as Gateway
    from twinkle_engines import JSONLSink as JSONLSink
    from twinkle_engines import Rollouts as Rollouts
    from twinkle_engines import RolloutSink as RolloutSink
    from twinkle_engines import SamplingParams as SamplingParams
    from twinkle_engines import TensorBoardSink as TensorBoardSink
    from twinkle_engines import ToolCall as ToolCall
    from twinkle_engines import TransformersModel as TransformersModel
    from twinkle_engines import TransformersSampler as TransformersSampler
    from twinkle_engines import VLLMSampler as VLLMSampler
    from twinkle_engines import WandbSink as WandbSink
    from twinkle_engines import advantages as advantages
    from twinkle_engines import evaluate as evaluate
    from twinkle_engines import load as load
    from twinkle_engines import mismatch as mismatch
    from twinkle_engines import overlong as overlong
    from twinkle_engines import preferences as preferences
    from twinkle_engines import rewards as rewards
    from twinkle_engines import rewards_differ as rewards_differ
    from twinkle_engines import save as save
    from twinkle_engines import supervised as supervised
    from twinkle_engines import tiny_model as tiny_model
else:
    __all__, __getattr__, __dir__ = load_lazily(__name__)
