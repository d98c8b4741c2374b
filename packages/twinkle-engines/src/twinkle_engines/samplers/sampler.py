"""Sampler: what samplers have alike. Prompts become jobs with seeds, and the answers to them rollouts with texts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_engines.batches.chats import encoded_rows, split_columns, template_of
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.models.layout import check_replicas
from twinkle_engines.samplers.params import SamplingParams, chosen_params
from twinkle_engines.samplers.seeds import RowSeeds
from twinkle_remote import current_worker, remote_function

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Template
    from twinkle_engines.samplers.seeds import Job
    from twinkle_mesh import DeviceMesh


class Sampler:
    """A component that writes; each data rank holds all of the model and takes its share of prompts."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase | None,
        params: SamplingParams | None,
        tools: Sequence[Any] | None,
        options: Mapping[str, Any] | None,
        ends: Collection[int],
    ) -> None:
        self._tokenizer, self._params, self._ends = tokenizer, params, ends
        self._template = template_of(tokenizer, tools, options)
        self._seeds = RowSeeds()

    def _jobs(self, prompts: Sequence[Any], params: SamplingParams | None) -> tuple[SamplingParams, list[Job]]:
        """The parameters of a call, and an answer to write for each prompt and number."""
        chosen = chosen_params(params, self._params, self._tokenizer is not None)
        return chosen, self._seeds.jobs(encoded_rows(prompts, self._template), chosen.n, chosen.seed)

    def _rollouts(
        self,
        prompts: Sequence[Any],
        params: SamplingParams,
        answers: Sequence[Answer],
        versions: Sequence[torch.Tensor | int],
    ) -> Rollouts:
        """A row for each prompt, with its further columns."""
        given, columns = split_columns(prompts)
        rollouts = to_rollouts(answers, params, self._tokenizer, versions, self._ends)
        return rollouts.replace(counts=[params.n] * len(given), prompts=given, columns=columns)

    @remote_function(dispatch="all", collect="first")
    def own_params(self) -> SamplingParams:
        """The parameters of calls that do not say them; Python's defaults where there are none."""
        return self._params or SamplingParams()

    @remote_function(dispatch="all", collect="first")
    def template(self) -> tuple[Template | None, list[int]]:
        """The tokenizer with its template, None without one, and the tokens that end an answer."""
        return self._template, [*self._ends]

    @remote_function(dispatch="all", sync=True)
    def state_dict(self) -> dict[str, int]:
        """The state of this rank's draws, for a checkpoint: `twinkle.engines.save(sampler=...)` calls it."""
        return self._seeds.state()

    @remote_function(dispatch="all", sync=True)
    def load_state_dict(self, state: Mapping[str, int] | Sequence[Mapping[str, int]]) -> None:
        """Go on drawing where the ranks of a checkpoint were, on any number of ranks: nothing is drawn again."""
        self._seeds.resume([state] if "version" in state else state)  # type: ignore[list-item, arg-type]  # which of the two


def own_mesh(engine: str) -> DeviceMesh | None:
    """The mesh of the sampler that is being built on this worker. ValueError: it divides the model."""
    mesh = current_worker().mesh
    if mesh is not None:
        check_replicas(engine, mesh)
    return mesh


class Answer(NamedTuple):
    """One sequence: the prompt's ids, the answer's, their log-probabilities, and why it ended ("stop" or "length")."""

    prompt: list[int]
    ids: list[int]
    logprobs: torch.Tensor
    finish: str


def to_rollouts(
    answers: Sequence[Answer],
    params: SamplingParams,
    tokenizer: PreTrainedTokenizerBase | None,
    versions: Sequence[torch.Tensor | int],
    ends: Collection[int],
) -> Rollouts:
    """Rollouts of the answers, a row each, with the versions of each or of its tokens; a text ends before its stop."""
    count = len(answers)
    return Rollouts(
        [torch.tensor([*one.prompt, *one.ids]) for one in answers],
        [torch.tensor([0] * len(one.prompt) + [1] * len(one.ids)) for one in answers],
        logprobs=[torch.cat([torch.zeros(len(one.prompt)), one.logprobs]) for one in answers],
        temperatures=[params.temperature or 1.0] * count,
        versions=versions,
        completions=None if tokenizer is None else [_text(one, params, tokenizer, ends) for one in answers],
        finish=[one.finish for one in answers],
        truncated_sampling=[params.is_truncated] * count,
    )


def _text(one: Answer, params: SamplingParams, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> str:
    ids = one.ids[:-1] if one.finish == "stop" and one.ids[-1] in ends else one.ids
    special = set(tokenizer.all_special_ids) if params.skip_special_tokens else set()
    whole = decoded(ids, tokenizer)
    start = min([whole.find(stop) for stop in params.stop if stop in whole], default=None)
    if special.isdisjoint(ids):
        return whole[:start]
    if start is None:
        return decoded(ids, tokenizer, skips_special=True)
    # a stop may have special tokens, which are not in the text: the tokens whose text ends at or before it
    length = max(n for n in range(len(ids)) if len(decoded(ids[:n], tokenizer)) <= start)
    begun = "" if ids[length] in special else whole[len(decoded(ids[:length], tokenizer)) : start]
    return decoded(ids[:length], tokenizer, skips_special=True) + begun


def decoded(ids: list[int], tokenizer: PreTrainedTokenizerBase, *, skips_special: bool = False) -> str:
    """The text of tokens as they were written: spaces before marks stay, so that more tokens have a longer text."""
    return str(tokenizer.decode(ids, skip_special_tokens=skips_special, clean_up_tokenization_spaces=False))
