"""VLLMEngine: vLLM's AsyncLLM for a model, and how it draws, answers and takes weights.

vLLM batches the requests of all callers, aborts those that nobody waits for, and computes in a process of its own.
"""

from __future__ import annotations

import asyncio
import math
import os
import shutil
import weakref
from copy import deepcopy
from functools import cached_property
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from tempfile import mkdtemp
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PretrainedConfig

from twinkle_engines.batches.chats import ends_of
from twinkle_engines.models.build import read_tokenizer
from twinkle_engines.models.passes import rope_border
from twinkle_engines.samplers.sampler import Answer, sequence_seed

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.samplers.sampler import Job, SamplingParams

    _Row = tuple[str, str, list[int], int]

T = TypeVar("T")
_ALIGNMENT = 256
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # that vLLM has


class VLLMEngine:
    """An engine, driven from an event loop in a thread of its own, so that any thread may call it.

    Raises:
        ValueError: For an engine argument that the sampler sets, or rotary frequencies that no trainer has.
    """

    def __init__(
        self,
        model: str | PathLike[str] | PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None,
        lora: PeftConfig | None,
        given: Mapping[str, Any],
    ) -> None:
        self._folder = mkdtemp(prefix="twinkle-vllm-")
        remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._lora, self._adapters = lora, None
        self._trust = bool(given.get("trust_remote_code", False))
        self.tokenizer = read_tokenizer(model, tokenizer)
        arguments = self._arguments(model, tokenizer, given)
        self._config: Any = AutoConfig.from_pretrained(arguments["model"], trust_remote_code=self._trust)
        self.ends = self._find_ends(arguments["model"])
        self._names = count()
        self._loop = asyncio.new_event_loop()
        Thread(target=self._loop.run_forever, name="vllm", daemon=True).start()
        self._engine = self.run(_start(arguments))
        weakref.finalize(self, _end, self._engine, self._loop)
        if lora is None:
            remove()  # the engine has read it: a worker that is killed leaves nothing
        self._dtype: torch.dtype = self._engine.model_config.dtype
        self._length: int = self._engine.model_config.max_model_len
        _check_rotary(self._config, self._length)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine of the engine's loop, for which this waits."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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

    async def write(self, jobs: Sequence[Job], params: SamplingParams) -> list[tuple[Answer, Tensor]]:
        """Answers to jobs with the version of each token; a caller that is cancelled aborts what is left of them."""
        work = asyncio.run_coroutine_threadsafe(self._write_all(jobs, params), self._loop)
        return await asyncio.wrap_future(work)

    async def _write_all(self, jobs: Sequence[Job], params: SamplingParams) -> list[tuple[Answer, Tensor]]:
        tasks = [asyncio.create_task(self._write(job, params)) for job in jobs]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for one in tasks:
                one.cancel()  # those that nobody waits for, after an error

    async def _write(self, job: Job, params: SamplingParams) -> tuple[Answer, Tensor]:
        output: Any = None
        drawing = self._drawing(params, sequence_seed(*job))
        prompt, name = {"prompt_token_ids": list(job.ids)}, str(next(self._names))
        async for made in self._engine.generate(prompt, drawing, name, lora_request=self._adapters):
            output = made
        return answer_of(job.ids, output)

    async def load(self, version: int) -> None:
        """Have the engine take the weights that are in the buffer between two tokens, and forget its prefix cache.

        After an error the engine writes nothing until weights are there.

        Raises:
            RuntimeError: The cache is still there.
        """
        await self._engine.pause_generation(mode="keep", clear_cache=False)
        if self._lora is None:
            await self._engine.collective_rpc(TakesWeights.take_weights.__name__, kwargs=self.buffer.description)
        else:
            await self._load_adapters()
        await self._engine.update_weight_version(str(version))
        if not await self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the prefix cache of the old weights is in use")
        await self._engine.resume_generation()

    async def _load_adapters(self) -> None:
        from safetensors.torch import save_file
        from vllm.lora.request import LoRARequest

        folder = self._saved("adapters", self._lora)
        save_file(self.buffer.tensors, Path(folder) / "adapter_model.safetensors")
        await self._engine.add_lora(LoRARequest("twinkle", 1, folder, load_inplace=True))
        self._adapters = LoRARequest("twinkle", 1, folder)

    def _drawing(self, params: SamplingParams, seed: int) -> Any:
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

    def _saved(self, name: str, what: Any) -> str:
        folder = str(Path(self._folder) / name)
        what.save_pretrained(folder)
        return folder

    def _arguments(
        self,
        model: str | PathLike[str] | PretrainedConfig,
        tokenizer: PreTrainedTokenizerBase | str | PathLike[str] | None,
        given: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The engine arguments of vLLM."""
        own: dict[str, Any] = {
            "model": self._saved("config", _named(model)) if isinstance(model, PretrainedConfig) else fspath(model),
            "generation_config": "vllm",
            "worker_extension_cls": f"{TakesWeights.__module__}.{TakesWeights.__name__}",
            "logprobs_mode": "processed_logprobs",
        }
        if self.tokenizer is None:
            own["skip_tokenizer_init"] = True
        elif tokenizer is not None:
            is_place = isinstance(tokenizer, str | PathLike)
            own["tokenizer"] = fspath(tokenizer) if is_place else self._saved("tokenizer", tokenizer)
        if self._lora is not None:
            rank = max([getattr(self._lora, "r", 1), *getattr(self._lora, "rank_pattern", {}).values()])
            own |= {"enable_lora": True, "max_lora_rank": min(one for one in _LORA_RANKS if one >= rank)}
        for name in sorted(given.keys() & own.keys()):
            raise ValueError(f"{name} is set by the sampler; use vLLM's other engine arguments")
        from_config = {"load_format": "dummy"} if isinstance(model, PretrainedConfig) else {}
        return {"disable_log_stats": True, **_executor(given), **from_config, **given, **own}

    def _find_ends(self, model: str) -> list[int]:
        """The tokens that end a sequence, as `TransformersSampler` has them."""
        try:
            ends = GenerationConfig.from_pretrained(model).eos_token_id
        except OSError:
            ends = getattr(self._config, "eos_token_id", None)
        return ends_of(self.tokenizer, ends)


async def _start(arguments: Mapping[str, Any]) -> Any:
    """The engine, whose loop is the one that runs this."""
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    await engine.update_weight_version("0")
    return engine


def _end(engine: Any, loop: asyncio.AbstractEventLoop) -> None:
    engine.shutdown()
    asyncio.run_coroutine_threadsafe(_stop(loop), loop)


async def _stop(loop: asyncio.AbstractEventLoop) -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    loop.stop()


def answer_of(ids: list[int], output: Any) -> tuple[Answer, Tensor]:
    """The answer in vLLM's output to a prompt, and the version of each token of both; the prompt has the first.

    Raises:
        RuntimeError: vLLM has given it up.
        ValueError: A log-probability is not finite.
    """
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
    versions = [int(span.version) for span in written.weight_versions for _ in range(span.start, span.end)]
    answer = Answer(ids, tokens, torch.tensor(logprobs), written.finish_reason)
    return answer, torch.tensor([versions[0]] * len(ids) + versions)


def _check_rotary(config: Any, length: int) -> None:
    """Raise where vLLM turns positions by other angles than Transformers does, which a trainer has.

    vLLM has one table for all sequences of an engine: of LongRoPE, that of the longest one that it may have; of dynamic
    NTK, one that is never scaled. Transformers chooses by the sequences of each pass.
    """
    border, _ = rope_border(config)
    if border is not None and length > border:
        raise ValueError(
            f"max_model_len is {length}, and above {border} this model's rotary frequencies depend on the length of a "
            "sequence, but vLLM has one table for all lengths, so that no trainer agrees with its answers: use "
            f"max_model_len={border}, or TransformersSampler"
        )


def _executor(given: Mapping[str, Any]) -> dict[str, Any]:
    """The way that an engine over several devices runs: in processes of this worker, which has them all.

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


class SharedWeights:
    """Tensors in one anonymous file of the kernel, which ends with the last process that has it open.

    Args:
        like: Tensors by name, whose shapes are taken, such as those of a model on the meta device. One that has two
            names, as a tied head has, has its memory once.
        dtype: Dtype of those of floating point; None for their own.

    Attributes:
        tensors: The tensors by name.
        description: Where they are, in plain values; good as long as these weights exist.
    """

    def __init__(self, like: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> None:
        starts: dict[int, int] = {}
        size = 0
        rows: list[_Row] = []
        for name, tensor in like.items():
            kind = dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
            if id(tensor) not in starts:
                starts[id(tensor)] = size
                size += -(-tensor.numel() * kind.itemsize // _ALIGNMENT) * _ALIGNMENT
            rows.append((name, str(kind).removeprefix("torch."), list(tensor.shape), starts[id(tensor)]))
        file = os.memfd_create("twinkle-weights")
        weakref.finalize(self, os.close, file)
        os.ftruncate(file, size)
        self.description: dict[str, Any] = {"path": f"/proc/{os.getpid()}/fd/{file}", "size": size, "rows": rows}
        self.tensors = tensors_in(mapped(self.description["path"], size), rows)


def mapped(path: str, size: int) -> Tensor:
    """The memory of `SharedWeights` in this process, as bytes."""
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8) if size else torch.empty(0)


def tensors_in(memory: Tensor, rows: Sequence[_Row]) -> dict[str, Tensor]:
    """The tensors of `SharedWeights` in its memory."""
    found = {}
    for name, kind, shape, start in rows:
        dtype: torch.dtype = getattr(torch, kind)
        stop = start + math.prod(shape) * dtype.itemsize
        found[name] = memory[start:stop].view(dtype).view(shape)
    return found


class TakesWeights:
    """A part of vLLM's workers, which it adds to them (`worker_extension_cls`)."""

    vllm_config: Any
    model_runner: Any
    _memory: Tensor | None = None

    def take_weights(self, path: str, size: int, rows: list[Any]) -> None:
        """Load all weights of a `SharedWeights`, of which an engine has one; vLLM packs them as after a start.

        Raises:
            ValueError: The model has parameters that they do not name.
        """
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

        if self._memory is None:
            self._memory = mapped(path, size)
            if torch.cuda.is_available():
                _pin(self._memory)
        model, config = self.model_runner.get_model(), self.vllm_config.model_config
        with set_current_vllm_config(self.vllm_config):
            initialize_layerwise_reload(model)
            loaded: Any = model.load_weights(tensors_in(self._memory, rows).items())
            wanted = {name for name, _ in model.named_parameters()}
            missing = wanted - loaded if loaded is not None and config.quantization is None else set()
            if missing:
                raise ValueError(
                    f"the weights that were synced leave {len(missing)} parameters of vLLM's model as they were, such "
                    f"as {min(missing)}: Transformers gives them other names than vLLM reads"
                )
            finalize_layerwise_reload(model, config)
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # what is read has been read


def _pin(memory: Tensor) -> None:
    """Pin memory for the process's life: GPUs read it directly. Where the system has a limit, copies are slower."""
    cuda: Any = torch.cuda  # torch has no types for its runtime
    cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
