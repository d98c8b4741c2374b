"""VLLMModel: vLLM's arguments for a model, and how it draws, answers and takes weights."""

from __future__ import annotations

import math
import shutil
import weakref
from copy import deepcopy
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from twinkle_engines.batches.ends import ends_of
from twinkle_engines.models.pretrained import read_tokenizer
from twinkle_engines.samplers.answer import Answer
from twinkle_engines.samplers.shared_weights import SharedWeights
from twinkle_engines.samplers.vllm_logprobs import NormalizedLogits
from twinkle_engines.samplers.vllm_rotary import check_rotary
from twinkle_engines.samplers.vllm_weights import BACKEND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_ray import StagedWeights

_COLDEST = 0.01
"""The lowest temperature that vLLM draws at."""
_ROUNDING = 1e-3
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has


class VLLMModel:
    """A model as vLLM sees it.

    Args:
        model: A folder, a hub's name, or a config.
        tokenizer: A tokenizer, or the folder or name of one; None for the one in the model's folder.
        lora: Adapters, or None.
        given: vLLM's engine arguments, of the user.

    Raises:
        TypeError: For another kind of model.
        ValueError: For an engine argument that the sampler sets.
    """

    def __init__(
        self,
        model: str | PathLike[str] | PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None,
        lora: PeftConfig | None,
        given: Mapping[str, Any],
    ) -> None:
        if not isinstance(model, str | PathLike | PretrainedConfig):
            raise TypeError(f"model is a path, a name or a config, got {type(model).__name__}")
        self._folder = mkdtemp(prefix="twinkle-vllm-")
        self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._lora = lora
        self._trust = bool(given.get("trust_remote_code", False))
        self._guesses = given.get("speculative_config") is not None
        self.tokenizer = read_tokenizer(model, tokenizer)
        self.adapters: Any = None
        own: dict[str, Any] = {
            "model": self._saved("config", _named(model)) if isinstance(model, PretrainedConfig) else fspath(model),
            "generation_config": "vllm",
            "weight_transfer_config": {"backend": BACKEND},
            **self._logprobs_arguments(given),
            **self._tokenizer_arguments(tokenizer),
            **self._lora_arguments(),
        }
        for name in sorted(given.keys() & own.keys() - {"logits_processors"}):
            raise ValueError(f"{name} is set by the sampler; use vLLM's other engine arguments")
        from_config = {"load_format": "dummy"} if isinstance(model, PretrainedConfig) else {}
        self.engine_arguments = {
            "disable_log_stats": True,
            **_executor(given),
            **_prefill(),
            **from_config,
            **given,
            **own,
        }
        self._config: Any = AutoConfig.from_pretrained(own["model"], trust_remote_code=self._trust)
        self.ends = self._find_ends(own["model"])
        self._dtype: torch.dtype | None = None
        self._length = 0
        if isinstance(given.get("max_model_len"), int):
            check_rotary(self._config, given["max_model_len"])  # before the engine starts, which takes long

    @cached_property
    def buffer(self) -> SharedWeights:
        """Memory for the weights by Transformers' names; for adapters, by peft's."""
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(self._config, trust_remote_code=self._trust)
            if self._lora is None:
                return SharedWeights(model.state_dict(keep_vars=True), self._dtype)
            from peft import get_peft_model, get_peft_model_state_dict

            like = get_peft_model_state_dict(get_peft_model(model, self._lora))
        return SharedWeights(like, torch.float32)

    @cached_property
    def staged(self) -> StagedWeights[Tensor]:
        """The buffer as a sync writes it: only `load` reads it."""
        from twinkle_ray import StagedWeights

        return StagedWeights(self.buffer.tensors)

    def begin(self, engine: Any) -> None:
        """Look at an engine that was built; it has read what was written for it."""
        if self._lora is None:
            self._remove()  # a worker that is killed leaves nothing
        self._dtype = engine.model_config.dtype
        self._length = engine.model_config.max_model_len
        check_rotary(self._config, self._length)
        engine.set_weight_version("0")

    def load(self, version: int, engine: Any) -> None:
        """Have an engine take the weights that are in the buffer, and forget its prefix cache.

        Raises:
            RuntimeError: The cache is still there.
        """
        if self._lora is None:
            engine.collective_rpc("start_weight_update")
            engine.collective_rpc("update_weights", kwargs={"update_info": self.buffer.description})
            engine.collective_rpc("finish_weight_update")
        else:
            self._load_adapters(engine)
        engine.set_weight_version(str(version))
        if not engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the prefix cache of the old weights is in use")

    def _load_adapters(self, engine: Any) -> None:
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        folder = self._saved("adapters", self._lora)
        save_file(self.buffer.tensors, Path(folder) / "adapter_model.safetensors")
        engine.add_lora(LoRARequest("twinkle", 1, folder, load_inplace=True))
        self.adapters = LoRARequest("twinkle", 1, folder)

    def check_length(self, ids: list[int]) -> None:
        """Raise for a prompt that leaves no room for an answer.

        Raises:
            ValueError: It is as long as a sequence may be.
        """
        if len(ids) >= self._length:
            raise ValueError(
                f"a prompt has {len(ids)} tokens, but a sequence of this engine has at most {self._length} with its "
                "answer; use a larger max_model_len"
            )

    def drawing(self, params: SamplingParams, seed: int) -> Any:
        """The parameters of vLLM for one sequence, whose draws follow from the seed.

        Raises:
            ValueError: vLLM would draw at another temperature, or report log-probabilities of another distribution.
        """
        from vllm import SamplingParams as Drawing
        from vllm.sampling_params import RequestOutputKind

        if 0 < params.temperature < _COLDEST:
            raise ValueError(
                f"temperature={params.temperature} is below {_COLDEST}, at which vLLM would draw instead; use at least "
                f"{_COLDEST}, or 0 for the likeliest token"
            )
        if self._guesses and params.is_truncated:
            raise ValueError(
                "with speculative_config vLLM reports log-probabilities after top_k, top_p and min_p; use parameters "
                "without these, or no speculative_config"
            )
        return Drawing(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            max_tokens=params.max_new_tokens,
            stop=list(params.stop),
            stop_token_ids=self.ends,
            ignore_eos=True,
            seed=seed & (2**63 - 1),
            logprobs=0,
            detokenize=bool(params.stop),
            skip_special_tokens=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def answer(self, ids: list[int], output: Any) -> tuple[Answer, Tensor]:
        """The answer in vLLM's output to a prompt, and the version of each token of both; the prompt has the first."""
        (written,) = output.outputs
        if written.finish_reason not in ("stop", "length"):
            raise RuntimeError(
                f"vLLM has given up an answer after {len(written.token_ids)} tokens ({written.finish_reason!r}), so it "
                "is not what the model would have written; look at the engine's log, and call again"
            )
        tokens = list(written.token_ids)
        logprobs = [step[token].logprob for step, token in zip(written.logprobs, tokens, strict=True)]
        if not all(map(math.isfinite, logprobs)):
            raise ValueError(
                "vLLM's log-probabilities of an answer are not finite, as its logits: look at the weights, the last "
                "sync and the dtype of the sampler"
            )
        if max(logprobs, default=0.0) > _ROUNDING:
            raise ValueError(
                f"vLLM gave a log-probability of {max(logprobs)}: its platform leaves out logits processors, which the "
                "sampler needs; use another platform"
            )
        versions = [int(span.version) for span in written.weight_versions for _ in range(span.start, span.end)]
        answer = Answer(ids, tokens, torch.tensor(logprobs), written.finish_reason)
        return answer, torch.tensor([versions[0]] * len(ids) + versions)

    def _saved(self, name: str, what: Any) -> str:
        folder = str(Path(self._folder) / name)
        what.save_pretrained(folder)
        return folder

    def _tokenizer_arguments(self, given: PreTrainedTokenizerBase | str | PathLike[str] | None) -> dict[str, Any]:
        if self.tokenizer is None:
            return {"skip_tokenizer_init": True}
        if given is None:
            return {}
        return {"tokenizer": fspath(given) if isinstance(given, str | PathLike) else self._saved("tokenizer", given)}

    def _lora_arguments(self) -> dict[str, Any]:
        if self._lora is None:
            return {}
        rank = max([getattr(self._lora, "r", 1), *getattr(self._lora, "rank_pattern", {}).values()])
        return {"enable_lora": True, "max_lora_rank": min(one for one in _LORA_RANKS if one >= rank)}

    def _logprobs_arguments(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for log-probabilities before tokens are left out; guessing takes no processors."""
        if self._guesses:
            return {"logprobs_mode": "processed_logprobs"}
        own = f"{NormalizedLogits.__module__}:{NormalizedLogits.__qualname__}"
        return {
            "logprobs_mode": "processed_logits",
            "logits_processors": [*(given.get("logits_processors") or ()), own],  # the last one sees what is drawn from
        }

    def _find_ends(self, model: str) -> list[int]:
        """The tokens that end a sequence, as `TransformersSampler` has them."""
        try:
            ends = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:
            ends = getattr(self._config, "eos_token_id", None)
        return ends_of(self.tokenizer, ends)


def _executor(given: Mapping[str, Any]) -> dict[str, Any]:
    """The way that an engine over several devices runs: in processes of this worker, which has them all.

    vLLM's own choice inside a worker of Ray would be Ray, in a placement group of its own, for which nothing is left.
    """
    sizes = (given.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return {"distributed_executor_backend": "mp"} if any(size > 1 for size in sizes) else {}


def _prefill() -> dict[str, Any]:
    """The way in which prompts are read: on a CPU each in one step.

    After a part of a prompt vLLM takes the draw of its generator back, which generators of a CPU do not support: the
    engine ends then. A sync reads what has been written again, so that parts are usual there.
    """
    from vllm.platforms import current_platform

    return {"enable_chunked_prefill": False} if current_platform.is_cpu() else {}


def _named(config: Any) -> Any:
    """A config that names its causal language model, as vLLM wants it; one that was made by hand does not."""
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config)).__name__
    named = deepcopy(config)
    named.architectures = [architecture]
    return named
