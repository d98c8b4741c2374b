"""TransformersSampler writes sequences with a Hugging Face causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_mesh import with_known_names
from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.models.neighbours import Neighbours
    from twinkle_engines.models.pretrained import Source
    from twinkle_engines.samplers.answer import Answer
    from twinkle_engines.samplers.sampling_params import SamplingParams
    from twinkle_engines.samplers.sequence_seed import Job
    from twinkle_mesh import DeviceMesh
    from twinkle_ray import ReplaceableWeights


@remote_class()
class TransformersSampler:
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
        timeout: Seconds that a call may take on a rank; None waits for ever.
        device_mesh: The mesh, of the dim dp alone.
        remote_group: The group of workers that hold the model.

    Raises:
        ImportError: The libraries of the extra `hf` are missing.
        ValueError: For a mesh that divides the model, or an option out of range.
    """

    @with_known_names
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
        timeout: float | None = None,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        from os import PathLike

        from twinkle_engines.batches.chats import check_tokenizer, template_of
        from twinkle_engines.batches.given import seconds, whole
        from twinkle_engines.models.adapters import check_adapters, facts
        from twinkle_engines.models.kept_state import KeptState
        from twinkle_engines.models.pretrained import build_model, check_installed, only_ends, read_tokenizer
        from twinkle_engines.models.token_limits import token_limits
        from twinkle_engines.parallel.model_layout import check_replicas, own_device
        from twinkle_engines.samplers.rereading import Rereading
        from twinkle_engines.samplers.sampling_params import checked_params
        from twinkle_engines.samplers.sequence_seed import RowSeeds

        check_installed("TransformersSampler")
        self._timeout = seconds("timeout", timeout)
        self._micro_batch_size = None if micro_batch_size is None else whole("micro_batch_size", micro_batch_size, 1)
        mesh = current_worker().mesh
        if mesh is not None:
            check_replicas("TransformersSampler", mesh)
        self._seeds = RowSeeds()
        if not isinstance(tokenizer, str | PathLike):
            check_tokenizer(tokenizer)
        self._tokenizer = read_tokenizer(model, tokenizer)
        self._template = template_of(self._tokenizer, tools, chat_template_kwargs)
        self._model: Any = build_model(model, dtype, lora).to(own_device(mesh)).eval()  # type: ignore[arg-type]  # typed as if it took no device
        self._kept = KeptState(self._model)
        self._rereading = Rereading(self._model)
        self._limits = token_limits(self._model)
        self._neighbours: Neighbours | None = None
        check_adapters(self._model, trained=False)
        self._facts = facts(self._model)
        self._ends = only_ends(self._model, self._tokenizer)
        self._params = None if params is None else checked_params(params, None)
        self._version = 0

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
            top_k, top_p and min_p, and `temperatures` has it. "length" ends an answer at the model's last position
            too, and, with a warning, where its rotary frequencies change (LongRoPE). A chat that ends with the
            assistant is continued.

        Raises:
            TimeoutError: The call takes longer than the sampler's `timeout`.
            TypeError: A prompt or the parameters are of another form.
            ValueError: A prompt has no tokens, leaves no room for an answer, or has ids that the model does not know;
                texts need a tokenizer; there are no parameters; or logits are not finite.
        """
        from twinkle_engines.batches.prompts import encoded_rows, split_columns
        from twinkle_engines.samplers.answers import check_prompts, to_rollouts
        from twinkle_engines.samplers.sampling_params import checked_params

        params = checked_params(params, self._params)
        if params.stop and self._tokenizer is None:
            raise ValueError("stop is texts, which need a tokenizer: use tokenizer= of the sampler")
        given, columns = split_columns(prompts)
        encoded = encoded_rows(prompts, self._template)
        check_prompts(self._limits, encoded)
        answers = self._write(self._seeds.jobs(encoded, params.n, params.seed), params)
        rollouts = to_rollouts(answers, params, self._tokenizer, [self._version] * len(answers), self._ends)
        return rollouts.replace(counts=[params.n] * len(given), prompts=given, columns=columns)

    def weights(self) -> ReplaceableWeights[Tensor]:
        """The weights by Transformers' names; of adapters, the adapters' alone, by peft's names."""
        from twinkle_engines.models.pretrained import config_facts, named_weights
        from twinkle_ray import ReplaceableWeights

        return ReplaceableWeights(named_weights(self._model), {**self._facts, **config_facts(self._model)})

    def on_weights(self, version: int) -> None:
        """Note the version of the weights, which stands at each token that is written with them."""
        self._version = version
        self._seeds.on_weights(version)

    @remote_function(dispatch="all", sync=True)
    def state_dict(self) -> dict[str, int]:
        """The state of this rank's draws, for a checkpoint: `twinkle.engines.save(sampler=...)` calls it."""
        version, calls = self._seeds.state()
        return {"version": version, "calls": calls}

    @remote_function(dispatch="all", sync=True)
    def load_state_dict(self, state: Mapping[str, int] | Sequence[Mapping[str, int]]) -> None:
        """Go on drawing where the ranks of a checkpoint were, on any number of ranks: nothing is drawn again.

        Args:
            state: Those of all ranks, or of the one, as `state_dict` returns them.
        """
        from twinkle_engines.samplers.sequence_seed import states_of

        self._seeds.resume(states_of(state))

    def _write(self, jobs: Sequence[Job], params: SamplingParams) -> list[Answer]:
        import time

        from twinkle_engines.models.neighbours import measure_rows
        from twinkle_engines.samplers.answers import Writer, check_finite, write
        from twinkle_engines.samplers.token_drawing import Deadline

        deadline = None if self._timeout is None else Deadline(self._timeout, time.monotonic() + self._timeout)
        if not jobs:
            return []
        if self._neighbours is None:
            check_finite(self._model, jobs[0].ids)  # what is no number has no neighbours either
            self._rereading.find_cache(jobs[0].ids)
            cached = self._rereading.cached
            self._neighbours = measure_rows(self._model, self._model.device, "left", cached=cached)
        known = self._ends, self._limits, self._neighbours, self._kept, self._rereading
        writer = Writer(self._model, self._tokenizer, *known, deadline)
        return write(writer, jobs, params, self._micro_batch_size)
