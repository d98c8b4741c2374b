"""TransformersSampler writes sequences with a Hugging Face causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle import DeviceMesh, ReplaceableWeights
    from twinkle.engines.answers import Answer
    from twinkle.engines.neighbours import Neighbours
    from twinkle.engines.pretrained import Source
    from twinkle.engines.rollouts import Rollouts
    from twinkle.engines.sampling_params import SamplingParams
    from twinkle.engines.sequence_seed import Job


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
        tools: What the template of chats is told of tools: JSON schemas, or functions. A row's own "tools" go first.
        chat_template_kwargs: Variables of the template, such as `enable_thinking`; a row's own go first.
        timeout: Seconds that a call may take on a rank; None waits for ever.
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
        timeout: float | None = None,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        from twinkle.engines.adapters import check_adapters, facts
        from twinkle.engines.chats import template_of
        from twinkle.engines.kept_state import KeptState
        from twinkle.engines.model_layout import check_replicas, own_device
        from twinkle.engines.pretrained import build_model, check_installed, only_ends, read_tokenizer
        from twinkle.engines.sampling_params import checked_params
        from twinkle.engines.sequence_seed import RowSeeds
        from twinkle.engines.token_limits import token_limits

        check_installed("TransformersSampler")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout is above 0 seconds, or None, got {timeout}")
        mesh = current_worker().mesh
        if mesh is not None:
            check_replicas("TransformersSampler", mesh)
        self._seeds = RowSeeds()
        self._tokenizer = read_tokenizer(model, tokenizer)
        self._model: Any = build_model(model, dtype, lora).to(own_device(mesh)).eval()  # type: ignore[arg-type]  # typed as if it took no device
        self._kept = KeptState(self._model)
        self._limits = token_limits(self._model)
        self._neighbours: Neighbours | None = None
        check_adapters(self._model, trained=False)
        self._facts = facts(self._model)
        self._ends = only_ends(self._model, self._tokenizer)
        self._template = template_of(self._tokenizer, tools, chat_template_kwargs)
        self._params = None if params is None else checked_params(params, None)
        self._micro_batch_size = micro_batch_size
        self._timeout = timeout
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
            tells the answer's tokens; log-probabilities are those of the distribution at the temperature, before
            top_k, top_p and min_p, and `temperatures` tells it. "length" ends an answer at the model's last position
            too. A chat that ends with the assistant is continued.

        Raises:
            TimeoutError: The call takes longer than the sampler's `timeout`.
            TypeError: A prompt or the parameters are of another form.
            ValueError: A prompt has no tokens, leaves no room for an answer, or has ids that the model does not know;
                texts need a tokenizer; there are no parameters; or logits are not finite.
        """
        from twinkle.engines.answers import check_prompts, to_rollouts
        from twinkle.engines.prompts import encoded_rows, split_columns
        from twinkle.engines.sampling_params import checked_params

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
        from twinkle import ReplaceableWeights
        from twinkle.engines.pretrained import named_weights

        return ReplaceableWeights(named_weights(self._model), self._facts)

    def on_weights(self, version: int) -> None:
        """Note the version of the weights, which stands at each token that is written with them."""
        self._version = version
        self._seeds.on_weights(version)

    def _write(self, jobs: Sequence[Job], params: SamplingParams) -> list[Answer]:
        import time

        from twinkle.engines.answers import Writer, check_finite, write
        from twinkle.engines.neighbours import look_at_rows
        from twinkle.engines.token_drawing import Deadline

        deadline = None if self._timeout is None else Deadline(self._timeout, time.monotonic() + self._timeout)
        if not jobs:
            return []
        if self._neighbours is None:
            check_finite(self._model, jobs[0].ids)  # what is no number has no neighbours either
            self._neighbours = look_at_rows(self._model, self._model.device, "left")
        known = self._ends, self._limits, self._neighbours, self._kept
        writer = Writer(self._model, self._tokenizer, *known, deadline)
        return write(writer, jobs, params, self._micro_batch_size)
