"""Components that write sequences: TransformersSampler with Hugging Face models, VLLMSampler with an engine of vLLM."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.chats import ends_of
from twinkle_engines.batches.rollouts import Rollouts  # noqa: TC001  read at run time: it travels over HTTP
from twinkle_engines.models.build import (
    build_model,
    check_installed,
    facts_of,
    named_weights,
    read_tokenizer,
    torch_dtype,
)
from twinkle_engines.models.gradients import move
from twinkle_engines.models.layout import own_device
from twinkle_engines.models.passes import limits_of
from twinkle_engines.samplers.sampler import Sampler, SamplingParams, own_mesh
from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

    from twinkle_engines.models.build import Source
    from twinkle_engines.samplers.sampler import Answer, Job
    from twinkle_mesh import DeviceMesh


_SECONDS = 0.003  # in which calls that were made together arrive


@remote_class()
class TransformersSampler(Sampler):
    """A Hugging Face causal language model that writes; each data rank holds all of it and takes its share of prompts.

    Args:
        model: A folder or a hub's name; a config, for random weights; or a function that builds the model.
        tokenizer: A tokenizer, or the folder or name of one; None for the one in the model's folder, if there is one.
        params: How to draw in calls that do not say it, such as those of a stream.
        lora: Adapters that a `TransformersModel` with the same ones trains.
        dtype: Dtype of the weights.
        micro_batch_size: Sequences written at once; None for all of them.
        tools: Tools for the template of chats: JSON schemas, or functions. A row's own "tools" go first.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`; a row's own go first.
        device_mesh: The mesh, of the dim dp alone.
        remote_group: The group of workers that hold the model.

    Raises:
        ImportError: The libraries of the extra `hf` are missing.
        ValueError: For a mesh that divides the model, or an option out of range.
    """

    def __init__(
        self,
        model: Source,
        *,
        tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None = None,
        params: SamplingParams | None = None,
        lora: PeftConfig | None = None,
        dtype: str = "float32",
        micro_batch_size: int | None = None,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        check_installed("TransformersSampler")
        from transformers import GenerationConfig

        mesh = own_mesh("TransformersSampler")
        kind = torch_dtype(dtype)
        self._micro_batch_size = micro_batch_size
        own = read_tokenizer(model, tokenizer)
        self._model: Any = build_model(model, kind, lora)[0].to(own_device(mesh)).eval()
        self._limits, self._facts = limits_of(self._model), facts_of(self._model)
        ends = ends_of(own, self._model.generation_config.eos_token_id)
        self._model.generation_config = GenerationConfig(eos_token_id=ends or None, pad_token_id=0)
        self._version, self._device = 0, self._model.device
        self._is_asleep = False
        self._gathering = _Gathering(self._write)
        super().__init__(own, params, tools, chat_template_kwargs, ends)

    @remote_function(dispatch="slice_dp", split=("prompts",), collect="flatten")
    def sample(self, prompts: Sequence[Any], params: SamplingParams | None = None) -> Rollouts:
        """Write sequences to prompts, in the order of the prompts.

        Args:
            prompts: Texts; chats, as lists of mappings with "role" and "content"; token ids; or mappings with one of
                these as "prompt", whose other keys become columns.
            params: How to draw; `params.n` sequences for each prompt. None takes those of the sampler.

        Returns:
            A row for each prompt. Ids have prompt and answer, with the tokens of a stop and the end token; the mask
            marks the answer's tokens; log-probabilities are those of the distribution at the temperature, before
            top_k, top_p and min_p, and `temperatures` has it. A chat that ends with the assistant is continued.

        Raises:
            ValueError: A prompt has no tokens, or ids that the model does not know; an answer may cross a border of
                rotary frequencies (LongRoPE); texts need a tokenizer; there are no parameters; or logits are not
                finite.
        """
        chosen, jobs = self._jobs(prompts, params)
        answers = self._write(jobs, chosen)
        return self._rollouts(prompts, chosen, answers, [self._version] * len(answers))

    @remote_function(dispatch="any", collect="first", sticky="session")
    async def complete(
        self, prompts: Sequence[Any], params: SamplingParams | None = None, session: str | None = None
    ) -> Rollouts:
        """`sample` on one data rank, the same one for a session; calls that wait at once are written together."""
        chosen, jobs = self._jobs(prompts, params)
        answers = await self._gathering.answers(jobs, chosen)
        return self._rollouts(prompts, chosen, answers, [self._version] * len(answers))

    def _write(self, jobs: Sequence[Job], params: SamplingParams) -> list[Answer]:
        from twinkle_engines.samplers.generation import write

        if self._is_asleep:
            raise RuntimeError("this sampler sleeps: call wake() first")
        size, ends, limits = self._micro_batch_size, self._ends, self._limits
        return write(self._model, jobs, params, size=size, ends=ends, tokenizer=self._tokenizer, limits=limits)

    @remote_function(dispatch="all", collect="first", sync=True)
    def sleep(self) -> None:
        """Move the weights to the host's memory; `wake` brings them back. A sync writes them there meanwhile."""
        move(self._model, None, "cpu")
        self._is_asleep = True

    @remote_function(dispatch="all", collect="first", sync=True)
    def wake(self) -> None:
        """Bring back what `sleep` has moved."""
        move(self._model, None, self._device)
        self._is_asleep = False

    def weights(self) -> Mapping[str, Tensor]:
        """The weights by Transformers' names; of adapters, the adapters' alone, by peft's names."""
        return named_weights(self._model)

    def weight_metadata(self) -> Mapping[str, str]:
        """Metadata of the weights, which a sync compares with the other side's."""
        return self._facts

    def on_weights(self, version: int) -> None:
        """Note the version of the weights, which stands at each token that is written with them."""
        self._version = version
        self._seeds.on_weights(version)


class _Gathering:
    """Calls that wait at once, whose jobs are written together, so that 64 episodes are not 64 passes of one row.

    Invariant: jobs are written on the event loop, between two awaits, where no new weights come meanwhile.

    Args:
        write: Writes an answer to each job; blocks until all are written.
    """

    def __init__(self, write: Callable[[Sequence[Job], SamplingParams], list[Answer]]) -> None:
        self._write = write
        self._waiting: dict[SamplingParams, list[tuple[list[Job], asyncio.Future[list[Answer]]]]] = {}

    async def answers(self, jobs: list[Job], params: SamplingParams) -> list[Answer]:
        """The answers to jobs: waits for those of earlier calls, then for all that were asked with equal parameters."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Answer]] = loop.create_future()
        if not self._waiting:
            loop.call_later(_SECONDS, self._answer_all)
        self._waiting.setdefault(params, []).append((jobs, future))
        return await future

    def _answer_all(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for params, calls in waiting.items():
            open_calls = [(jobs, future) for jobs, future in calls if not future.done()]
            try:
                found = iter(self._write([job for jobs, _ in open_calls for job in jobs], params))
                for jobs, future in open_calls:
                    future.set_result([next(found) for _ in jobs])
            except Exception as error:
                if len(open_calls) == 1:
                    open_calls[0][1].set_exception(error)  # its caller raises it
                    continue
                for one in open_calls:  # the error is that of one call: the others have their answers
                    self._waiting = {params: [one]}
                    self._answer_all()


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
        """Host memory for weights by Transformers' names, which `on_weights` reads; adapters by peft's names."""
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
