"""Samplers: their parameters, seeds by which draws do not depend on other rows, and answers as rollouts."""

from __future__ import annotations

import hashlib
import math
import os
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_engines.batches.chats import encoded_rows, split_columns, template_of
from twinkle_engines.batches.rollouts import Rollouts
from twinkle_engines.models.layout import check_sizes
from twinkle_remote import current_worker, remote_function
from twinkle_remote.backends.support import session_seed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Template
    from twinkle_mesh import DeviceMesh


@dataclass(frozen=True)
class SamplingParams:
    """The way that tokens are drawn, and when a sequence ends.

    Attributes:
        temperature: Divides the logits, at or above 0; 0 takes the likeliest token.
        top_k: Draws from so many likeliest tokens; 0 from all.
        top_p: Draws from the likeliest tokens that make up this probability, in (0, 1].
        min_p: Leaves out tokens that are less likely than this share of the likeliest one, in [0, 1].
        n: Sequences for each prompt.
        max_new_tokens: Longest answer, in tokens.
        stop: A sequence ends when its answer contains one of these texts; one text stands for itself.
        seed: Answers are a function of it, of the prompt and of the answer's number: a prompt that is asked for twice
            gets the same ones. None draws one for each prompt of each call.
        skip_special_tokens: Leave special tokens, such as marks of thoughts and tools, out of the answers' texts. The
            token that ends an answer is never in its text.

    Raises:
        ValueError: A value is out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    max_new_tokens: int = 256
    stop: tuple[str, ...] = ()
    seed: int | None = None
    skip_special_tokens: bool = True

    def __post_init__(self) -> None:
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else tuple(given)
        object.__setattr__(self, "stop", stop)
        for name, holds, rule in (
            ("temperature", 0 <= self.temperature < math.inf, "at or above 0, and finite"),
            ("top_k", self.top_k >= 0, "at or above 0"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("n", self.n >= 1, "at or above 1"),
            ("max_new_tokens", self.max_new_tokens >= 1, "at or above 1"),
            ("stop", all(stop), "made of texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{name} is {rule}, got {getattr(self, name)!r}")


def chosen_params(given: SamplingParams | None, own: SamplingParams | None, has_tokenizer: bool) -> SamplingParams:
    """The parameters of a call: those given, or the sampler's own.

    Raises:
        ValueError: There are none, or they have texts to stop at, which need a tokenizer.
    """
    found = own if given is None else given
    if found is None:
        raise ValueError("sample() has no parameters: give it SamplingParams, or params= to the sampler")
    if found.stop and not has_tokenizer:
        raise ValueError("stop is texts, which need a tokenizer: use tokenizer= of the sampler")
    return found


class Job(NamedTuple):
    """An answer to write: the prompt's ids, the answer's number among those to the prompt, and the row's seed."""

    ids: list[int]
    number: int
    seed: int


class RowSeeds:
    """The seeds of the rows of calls, drawn where a call has none.

    They are a function of the session's seed, the component, its data rank, the version of its weights and the number
    of the call under that version: two components draw differently, and so does each call. A run that goes on from a
    checkpoint has later versions, and does not repeat what was drawn. Ranks of one data rank draw the same.
    """

    def __init__(self) -> None:
        worker = current_worker()
        seed, session = session_seed()
        # under a launcher every process is the driver
        rank = int(os.environ.get("RANK", "0")) if worker.rank is None else worker.rank
        place = rank if worker.mesh is None else worker.mesh.data_rank()
        if seed is None:
            seed = int(torch.randint(2**62, ()))  # without a session, torch's generator is what the user seeds
        number = next(_components[session, worker.group, rank])
        self._name = f"{seed}/{worker.group}/{number}/{place}"
        self._lock = Lock()
        self._version = 0
        self._calls = count()

    def on_weights(self, version: int) -> None:
        """Begin the calls of a version that is later than those before."""
        with self._lock:
            if version > self._version:
                self._version, self._calls = version, count()

    def state(self) -> dict[str, int]:
        """The version, and the calls under it so far."""
        with self._lock:
            call = next(self._calls)
            self._calls = count(call)
            return {"version": self._version, "calls": call}

    def resume(self, states: Iterable[Mapping[str, int]]) -> None:
        """Go on behind the calls of all ranks of a run before, on any layout."""
        with self._lock:
            self._version, call = max((one["version"], one["calls"]) for one in states)
            self._calls = count(call)

    def jobs(self, prompts: Sequence[list[int]], n: int, seed: int | None) -> list[Job]:
        """The jobs of a call, `n` for each prompt, in the order of the prompts."""
        seeds = [seed] * len(prompts) if seed is not None else self._drawn(len(prompts))
        return [Job(ids, number, own) for ids, own in zip(prompts, seeds, strict=True) for number in range(n)]

    def _drawn(self, rows: int) -> list[int]:
        with self._lock:
            call = f"{self._name}/{self._version}/{next(self._calls)}"
        return [_number(f"{call}/{row}") for row in range(rows)]


_components: defaultdict[tuple[int, str | None, int], Iterator[int]] = defaultdict(count)
"""Numbers for the components of a rank in this process, by session."""


def draws_of(job: Job, count: int) -> torch.Tensor:
    """Numbers in [0, 1) of one sequence: a function of the seed, the prompt and the answer's number alone."""
    generator = torch.Generator().manual_seed(sequence_seed(*job))
    return torch.rand(count, dtype=torch.float64, generator=generator)


def sequence_seed(ids: Sequence[int], number: int, seed: int) -> int:
    """A function of a row's seed, the prompt's ids and the answer's number: a signed integer of 64 bits."""
    return _number(f"{seed}/{number}/{','.join(map(str, ids))}")


def _number(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little", signed=True)


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
        check_sizes(engine, mesh)
        if mesh.size("dp") != mesh.world_size:
            raise ValueError(
                f"{engine} holds the whole model on each rank, but the mesh has fsdp_size={mesh.size('fsdp')} and "
                f"tp_size={mesh.size('tp')}; use dp_size={mesh.world_size} alone"
            )
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
    )


def _text(one: Answer, params: SamplingParams, tokenizer: PreTrainedTokenizerBase, ends: Collection[int]) -> str:
    ids = one.ids[:-1] if one.finish == "stop" and one.ids[-1] in ends else one.ids
    whole = decoded(ids, tokenizer)
    start = min([whole.find(stop) for stop in params.stop if stop in whole], default=None)
    special = set(tokenizer.all_special_ids) if params.skip_special_tokens else set()
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
