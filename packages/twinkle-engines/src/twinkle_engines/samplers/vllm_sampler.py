"""VLLMSampler writes sequences with an engine of vLLM."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.samplers.answer import Answer
    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_engines.samplers.sequence_seed import Job
    from twinkle_mesh import DeviceMesh
    from twinkle_ray import StagedWeights


@remote_class()
class VLLMSampler:
    """An engine of vLLM that writes; each data rank has one of its own and takes its share of prompts.

    Calls that are at work at once are batched together, token by token.

    Args:
        model: A folder or a hub's name; or a config, for random weights until a `WeightSync` brings some.
        tokenizer: A tokenizer, or the folder or name of one; None for the one in the model's folder, if there is one.
        params: How to draw in calls that do not say it, such as those of a stream.
        lora: Adapters that a `TransformersModel` with the same ones trains.
        tools: Tools for the template of chats: JSON schemas, or functions. A row's own "tools" go first.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`; a row's own go first.
        timeout: Seconds that a call may take on a rank; None waits for ever.
        device_mesh: The mesh, of the dim dp alone.
        remote_group: The group of workers that hold the engines. `tensor_parallel_size=n` takes n devices of each,
            `DeviceGroup(..., gpus_per_worker=n)`.
        engine_arguments: vLLM's own: `dtype`, `max_model_len`, `tensor_parallel_size`, `gpu_memory_utilization`, ...

    Raises:
        ImportError: vLLM is missing; the extra `vllm` brings it.
        TypeError: For another kind of model.
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
        timeout: float | None = None,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
        **engine_arguments: Any,
    ) -> None:
        from twinkle_engines.batches.given import seconds
        from twinkle_engines.models.pretrained import check_installed

        check_installed("VLLMSampler", "vllm")
        self._timeout = seconds("timeout", timeout)
        if lora is not None:
            check_installed("VLLMSampler with lora")
        from twinkle_engines.batches.chats import template_of
        from twinkle_engines.parallel.model_layout import check_replicas
        from twinkle_engines.samplers.sampling_params import checked_params
        from twinkle_engines.samplers.sequence_seed import RowSeeds
        from twinkle_engines.samplers.vllm_loop import EngineLoop
        from twinkle_engines.samplers.vllm_model import VLLMModel

        mesh = current_worker().mesh
        if mesh is not None:
            check_replicas("VLLMSampler", mesh)
        self._seeds = RowSeeds()
        self._model = VLLMModel(model, tokenizer, lora, engine_arguments)
        self._engine = EngineLoop(self._model.engine_arguments)
        self._engine.run(self._model.begin)
        self._template = template_of(self._model.tokenizer, tools, chat_template_kwargs)
        self._params = None if params is None else checked_params(params, None)
        self._broken: str | None = None

    @remote_function(dispatch="slice_dp", split=("prompts",), collect="flatten")
    async def sample(self, prompts: Sequence[Any], params: SamplingParams | None = None) -> Rollouts:
        """Write sequences to prompts, in the order of the prompts.

        Args:
            prompts: Texts; chats, as lists of mappings with "role" and "content"; token ids; or mappings with one of
                these as "prompt", whose other keys become columns.
            params: How to draw; `params.n` sequences for each prompt. None takes those of the sampler. A seed makes
                each sequence's draws its own; the logits that they fall on vary with the batch by rounding.

        Returns:
            A row for each prompt. Ids have prompt and answer, with the tokens of a stop and the end token; the mask
            marks the answer's tokens; log-probabilities are those of the distribution at the temperature, before
            top_k, top_p and min_p, and `temperatures` has it; versions name the weights that wrote each token, also
            where new ones came in the middle of a sequence. "length" ends a sequence at `max_model_len` too. A chat
            that ends with the assistant is continued.

        Raises:
            ValueError: A prompt has no tokens or more than the engine takes, texts need a tokenizer, there are no
                parameters, or vLLM does not draw by them.
            TimeoutError: The call takes longer than the sampler's `timeout`.
            TypeError: A prompt or the parameters are of another form.
            RuntimeError: The engine has not taken the latest weights, or has ended.
        """
        from twinkle_engines.batches.prompts import encoded_rows, split_columns
        from twinkle_engines.samplers.answers import to_rollouts
        from twinkle_engines.samplers.sampling_params import checked_params

        params = checked_params(params, self._params)
        tokenizer = self._model.tokenizer
        if params.stop and tokenizer is None:
            raise ValueError("stop is texts, which need a tokenizer: use tokenizer= of the sampler")
        given, columns = split_columns(prompts)
        encoded = encoded_rows(prompts, self._template)
        for ids in encoded:
            self._model.check_length(ids)
        jobs = self._seeds.jobs(encoded, params.n, params.seed)
        try:
            written = await asyncio.wait_for(self._write(jobs, params), self._timeout)
        except TimeoutError as error:
            raise TimeoutError(
                f"sample() has taken longer than timeout={self._timeout} seconds; use a longer timeout=, or fewer "
                "prompts or tokens at once"
            ) from error
        rollouts = to_rollouts(
            [one for one, _ in written], params, tokenizer, [versions for _, versions in written], self._model.ends
        )
        return rollouts.replace(counts=[params.n] * len(given), prompts=given, columns=columns)

    def weights(self) -> StagedWeights[Tensor]:
        """Memory for weights by Transformers' names, which the engine reads in `on_weights`; adapters by peft's names.

        It is on the host, as large as the model once for each engine, and holds nothing before the first sync.
        """
        return self._model.staged

    def on_weights(self, version: int) -> None:
        """Have the engine take the weights, between two tokens, and forget what it has cached of the old ones.

        Raises:
            RuntimeError: The engine cannot take them; the sampler writes nothing until a sync works.
        """
        from functools import partial

        try:
            self._engine.run(partial(self._model.load, version))
        except Exception as error:
            self._broken = f"vLLM has not taken version {version} of the weights: {type(error).__name__}: {error}"
            raise RuntimeError(self._broken) from error
        self._broken = None
        self._seeds.on_weights(version)

    async def _write(self, jobs: Sequence[Job], params: SamplingParams) -> list[tuple[Answer, Tensor]]:
        from twinkle_engines.samplers.sequence_seed import sequence_seed

        if self._broken is not None:
            raise RuntimeError(f"{self._broken}; sync again")
        outputs = []
        try:
            for job in jobs:
                drawing = self._model.drawing(params, sequence_seed(*job))
                outputs.append(self._engine.write(job.ids, drawing, self._model.adapters))
            return [
                self._model.answer(job.ids, await asyncio.wrap_future(output))
                for job, output in zip(jobs, outputs, strict=True)
            ]
        finally:
            for output in outputs:
                output.cancel()  # those that nobody waits for, after an error
