"""TransformersSampler writes sequences with a Hugging Face causal language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.rollouts import Rollouts  # noqa: TC001  read at run time: it travels over HTTP
from twinkle_engines.samplers.params import SamplingParams  # noqa: TC001  as above
from twinkle_remote import current_worker, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.models.build import Source
    from twinkle_mesh import DeviceMesh


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
        from transformers import GenerationConfig

        from twinkle_engines.batches.chats import template_of
        from twinkle_engines.batches.prompts import ends_of
        from twinkle_engines.models.build import build_model, check_installed, facts_of, read_tokenizer, torch_dtype
        from twinkle_engines.models.checks import limits_of
        from twinkle_engines.models.layout import check_replicas, own_device
        from twinkle_engines.samplers.seeds import RowSeeds

        check_installed("TransformersSampler")
        mesh = current_worker().mesh
        if mesh is not None:
            check_replicas("TransformersSampler", mesh)
        kind = torch_dtype("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
        self._micro_batch_size, self._params = micro_batch_size, params
        self._seeds = RowSeeds()
        self._tokenizer = read_tokenizer(model, tokenizer)
        self._template = template_of(self._tokenizer, tools, chat_template_kwargs)
        self._model: Any = build_model(model, kind, lora)[0].to(own_device(mesh)).eval()
        self._limits, self._facts = limits_of(self._model), facts_of(self._model)
        self._ends = ends_of(self._tokenizer, self._model.generation_config.eos_token_id)
        # the model's other preferences for generation are dropped
        self._model.generation_config = GenerationConfig(eos_token_id=self._ends or None, pad_token_id=0)
        self._version, self._device = 0, self._model.device
        self._is_asleep = False

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
            too. A chat that ends with the assistant is continued.

        Raises:
            TypeError: A prompt or the parameters are of another form.
            ValueError: A prompt has no tokens, leaves no room for an answer, or has ids that the model does not know;
                an answer may cross a border of rotary frequencies (LongRoPE); texts need a tokenizer; there are no
                parameters; or logits are not finite.
        """
        from twinkle_engines.batches.prompts import encoded_rows, split_columns
        from twinkle_engines.samplers.answers import to_rollouts
        from twinkle_engines.samplers.generation import write
        from twinkle_engines.samplers.params import chosen_params

        if self._is_asleep:
            raise RuntimeError("this sampler sleeps: call wake() first")
        params = chosen_params(params, self._params, self._tokenizer is not None)
        given, columns = split_columns(prompts)
        jobs = self._seeds.jobs(encoded_rows(prompts, self._template), params.n, params.seed)
        answers = write(
            self._model,
            jobs,
            params,
            size=self._micro_batch_size,
            ends=self._ends,
            tokenizer=self._tokenizer,
            limits=self._limits,
        )
        rollouts = to_rollouts(answers, params, self._tokenizer, [self._version] * len(answers), self._ends)
        return rollouts.replace(counts=[params.n] * len(given), prompts=given, columns=columns)

    @remote_function(dispatch="all", collect="first", sync=True)
    def sleep(self) -> None:
        """Move the weights to the host's memory; `wake` brings them back. A sync writes them there meanwhile."""
        from twinkle_engines.models.gradients import move

        move(self._model, None, "cpu")
        self._is_asleep = True

    @remote_function(dispatch="all", collect="first", sync=True)
    def wake(self) -> None:
        """Bring back what `sleep` has moved."""
        from twinkle_engines.models.gradients import move

        move(self._model, None, self._device)
        self._is_asleep = False

    def weights(self) -> Mapping[str, Tensor]:
        """The weights by Transformers' names; of adapters, the adapters' alone, by peft's names."""
        from twinkle_engines.models.build import named_weights

        return named_weights(self._model)

    def weight_metadata(self) -> Mapping[str, str]:
        """Metadata of the weights, which a sync compares with the other side's."""
        return self._facts

    def on_weights(self, version: int) -> None:
        """Note the version of the weights, which stands at each token that is written with them."""
        self._version = version
        self._seeds.on_weights(version)

    @remote_function(dispatch="all", sync=True)
    def state_dict(self) -> dict[str, int]:
        """The state of this rank's draws, for a checkpoint: `twinkle.engines.save(sampler=...)` calls it."""
        return self._seeds.state()

    @remote_function(dispatch="all", sync=True)
    def load_state_dict(self, state: Mapping[str, int] | Sequence[Mapping[str, int]]) -> None:
        """Go on drawing where the ranks of a checkpoint were, on any number of ranks: nothing is drawn again.

        Args:
            state: Those of all ranks, or of the one, as `state_dict` returns them.
        """
        self._seeds.resume([state] if "version" in state else state)  # type: ignore[list-item, arg-type]  # which of the two
