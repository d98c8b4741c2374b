"""VLLMModel: what vLLM is told of a model, and how it draws, answers and takes weights."""

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

from twinkle.engines.answers import Answer
from twinkle.engines.ends import ends_of
from twinkle.engines.pretrained import read_tokenizer
from twinkle.engines.shared_weights import SharedWeights
from twinkle.engines.vllm_weights import BACKEND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle.engines.sampling_params import SamplingParams

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
        self.tokenizer = read_tokenizer(model, tokenizer)
        self.adapters: Any = None
        own: dict[str, Any] = {
            "model": self._saved("config", _named(model)) if isinstance(model, PretrainedConfig) else fspath(model),
            "generation_config": "vllm",
            "logprobs_mode": "processed_logprobs",
            "weight_transfer_config": {"backend": BACKEND},
            **self._tokenizer_arguments(tokenizer),
            **self._lora_arguments(),
        }
        for name in sorted(given.keys() & own.keys()):
            raise ValueError(f"{name} is set by the sampler; vLLM's other engine arguments would do")
        from_config = {"load_format": "dummy"} if isinstance(model, PretrainedConfig) else {}
        self.engine_arguments = {"disable_log_stats": True, **_executor(given), **from_config, **given, **own}
        self._config: Any = AutoConfig.from_pretrained(own["model"], trust_remote_code=self._trust)
        self.ends = self._find_ends(own["model"])
        self._dtype: torch.dtype | None = None
        self._length = 0

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

    def begin(self, engine: Any) -> None:
        """Look at an engine that was built; it has read what was written for it."""
        if self._lora is None:
            self._remove()  # a worker that is killed leaves nothing
        self._dtype = engine.model_config.dtype
        self._length = engine.model_config.max_model_len
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
                "answer; a larger max_model_len would do"
            )

    def drawing(self, params: SamplingParams, seed: int) -> Any:
        """The parameters of vLLM for one sequence, whose draws follow from the seed."""
        from vllm import SamplingParams as Drawing
        from vllm.sampling_params import RequestOutputKind

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
        tokens = list(written.token_ids)
        logprobs = [step[token].logprob for step, token in zip(written.logprobs, tokens, strict=True)]
        if not all(map(math.isfinite, logprobs)):
            raise ValueError(
                "vLLM's log-probabilities of an answer are not finite, as its logits: look at the weights, the last "
                "sync and the dtype of the sampler"
            )
        versions = [int(span.version) for span in written.weight_versions for _ in range(span.start, span.end)]
        answer = Answer(ids, tokens, torch.tensor(logprobs), "stop" if written.finish_reason == "stop" else "length")
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

    def _find_ends(self, model: str) -> list[int]:
        """The tokens that end a sequence, as `TransformersSampler` has them."""
        try:
            ends = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:
            ends = getattr(self._config, "eos_token_id", None)
        return ends_of(self.tokenizer, ends)


def _executor(given: Mapping[str, Any]) -> dict[str, Any]:
    """How an engine over several devices runs: in processes of this worker, which has them all.

    vLLM's own choice inside a worker of Ray would be Ray, in a placement group of its own, for which nothing is left.
    """
    sizes = (given.get(f"{kind}_parallel_size", 1) for kind in ("tensor", "pipeline"))
    return {"distributed_executor_backend": "mp"} if any(size > 1 for size in sizes) else {}


def _named(config: Any) -> Any:
    """A config that names its causal language model, as vLLM wants it; one that was made by hand does not."""
    with torch.device("meta"):
        architecture = type(AutoModelForCausalLM.from_config(config)).__name__
    named = deepcopy(config)
    named.architectures = [architecture]
    return named
