"""VLLMSampler writes sequences with an engine of vLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.rollouts import Rollouts  # noqa: TC001  read at run time: it travels over HTTP
from twinkle_engines.models.build import check_installed
from twinkle_engines.samplers.sampler import (
    Sampler,
    SamplingParams,
    own_mesh,
)
from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from twinkle_mesh import DeviceMesh


@remote_class()
class VLLMSampler(Sampler):
    """An engine of vLLM that writes; each data rank has one of its own and takes its share of prompts.

    Calls that are at work at once are batched together, token by token.

    Args:
        model: A folder or a hub's name; or a config, for random weights until a `WeightSync` brings some.
        tokenizer: As of `TransformersSampler`, and so params, lora, tools, chat_template_kwargs.
        device_mesh: The mesh, of the dim dp alone.
        remote_group: The group of workers that hold the engines. `tensor_parallel_size=n` takes n devices of each,
            `DeviceGroup(..., gpus_per_worker=n)`.
        engine_arguments: vLLM's own: `dtype`, `max_model_len`, `tensor_parallel_size`, `gpu_memory_utilization`, ...

    Raises:
        ImportError: vLLM is missing; the extra `vllm` brings it.
        ValueError: For a mesh that divides the model, or an engine argument that is the sampler's.
    """

    def __init__(
        self,
        model: str | PathLike[str] | PretrainedConfig,
        *,
        tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None = None,
        params: SamplingParams | None = None,
        lora: PeftConfig | None = None,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
        **engine_arguments: Any,
    ) -> None:
        check_installed("VLLMSampler", "vllm")
        if lora is not None:
            check_installed("VLLMSampler with lora")
        from twinkle_engines.samplers.vllm_engine import VLLMEngine

        own_mesh("VLLMSampler")
        self._engine = VLLMEngine(model, tokenizer, lora, engine_arguments)
        self._broken: str | None = None
        super().__init__(self._engine.tokenizer, params, tools, chat_template_kwargs, self._engine.ends)

    @remote_function(dispatch="slice_dp", split=("prompts",), collect="flatten")
    async def sample(self, prompts: Sequence[Any], params: SamplingParams | None = None) -> Rollouts:
        """Write sequences to prompts, in the order of the prompts.

        Args:
            prompts: As for `TransformersSampler.sample`.
            params: As there. A seed makes each sequence's draws its own; the logits that they fall on vary with the
                batch by rounding.

        Returns:
            Rollouts as there, but that log-probabilities are those of the distribution that was drawn from, after
            top_k, top_p and min_p, and that versions name the weights that wrote each token, also where new ones came
            in the middle of a sequence. "length" ends a sequence at `max_model_len` too.

        Raises:
            ValueError: A prompt has no tokens or more than the engine takes, texts need a tokenizer, there are no
                parameters; vLLM raises others.
            TypeError: A prompt or the parameters are of another form.
            RuntimeError: The engine has not taken the latest weights, or has ended.
        """
        return await self._sampled(prompts, params)

    @remote_function(dispatch="any", collect="first", sticky="session")
    async def complete(
        self, prompts: Sequence[Any], params: SamplingParams | None = None, session: str | None = None
    ) -> Rollouts:
        """`sample` on one data rank, that of a session's earlier calls: its engine has their prompts cached."""
        return await self._sampled(prompts, params)

    async def _sampled(self, prompts: Sequence[Any], params: SamplingParams | None) -> Rollouts:
        chosen, jobs = self._jobs(prompts, params)
        if self._broken is not None:
            raise RuntimeError(f"{self._broken}; sync again")
        written = await self._engine.write(jobs, chosen)
        return self._rollouts(prompts, chosen, [one for one, _ in written], [versions for _, versions in written])

    def weights(self) -> Mapping[str, Tensor]:
        """Memory for weights by Transformers' names, which the engine reads in `on_weights`; adapters by peft's names.

        It is on the host, as large as the model once for each engine, and holds nothing before the first sync.
        """
        return self._engine.buffer.tensors

    def on_weights(self, version: int) -> None:
        """Have the engine take the weights, between two tokens, and forget what it has cached of the old ones.

        Raises:
            RuntimeError: The engine cannot take them; the sampler writes nothing until a sync works.
        """
        try:
            self._engine.run(self._engine.load(version))
        except Exception as error:
            self._broken = f"vLLM has not taken version {version} of the weights: {type(error).__name__}: {error}"
            raise RuntimeError(self._broken) from error
        self._broken = None
        self._seeds.on_weights(version)
