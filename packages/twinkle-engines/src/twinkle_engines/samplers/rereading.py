"""Rereading: whether an answer has the log-probabilities with which it was written, token by token, when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from transformers import GenerationConfig

from twinkle_engines.models.forward import chosen
from twinkle_engines.models.neighbours import FAR
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.samplers.answer import Answer

_FEW = 4  # tokens
_NEAR = 0.03
"""The share of the logits' spread by which half of all tokens may differ in a short type, however small rounding is."""
_PADS = (1, 6, 17)
"""Numbers of padding tokens on the left, with which a sequence is read to see how far rounding goes."""


class Rereading:
    """Reads some answers of a model in one pass each, as a trainer does, and compares.

    Models that compute other positions while they write (RoBERTa), or that keep the tokens before in another way than
    they read them (RWKV with several rows, Moshi behind its window), write with numbers that no trainer has. This looks
    at the first answers, and again each time that there are twice as many rows, tokens, or tokens of an answer.

    Args:
        model: The model that writes.

    Attributes:
        cached: Whether the model writes from what it keeps of the tokens before; else it reads all of them anew.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._seen = (0, 0, 0)
        self.cached = True

    @torch.no_grad()
    def find_cache(self, ids: list[int]) -> None:
        """Find out whether the model writes at all from what it keeps; the cache of xLSTM does not fit its layers.

        Args:
            ids: A prompt.

        Raises:
            ValueError: The model writes neither with what it keeps nor without.
        """
        failed: Exception | None = None
        for self.cached in (True, False):
            try:
                self._write_two(ids)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # whatever a model raises
                failed = failed or error
            else:
                return
        raise ValueError(
            f"{type(plain_model(self._model)).__name__} writes nothing by Transformers' generate, with or without a "
            f"cache: {type(failed).__name__}: {failed}; use another model, or train this one on given rows"
        ) from failed

    def _write_two(self, ids: list[int]) -> None:
        """Write two tokens: the second one is made from what the first pass has left."""
        config = GenerationConfig(
            do_sample=False, min_new_tokens=2, max_new_tokens=2, pad_token_id=0, use_cache=self.cached
        )
        given = torch.tensor([ids[:_FEW]], device=self._model.device)
        self._model.generate(input_ids=given, attention_mask=torch.ones_like(given), generation_config=config)

    def holds(self, answers: Sequence[Answer], temperature: float) -> bool:
        """Whether answers that were written at once are as they are read; where not, they are to be written again.

        Args:
            answers: At least one.
            temperature: That of their log-probabilities, above 0.

        Raises:
            ValueError: They are not, and were written without what the model keeps.
        """
        longest = max(answers, key=lambda one: len(one.prompt) + len(one.ids))
        size = len(answers), len(longest.prompt) + len(longest.ids), max(len(one.ids) for one in answers)
        if all(now < 2 * before for now, before in zip(size, self._seen, strict=True)):
            return True
        looked = {id(one): one for one in (longest, answers[0], answers[-1]) if one.ids}
        if not self._differ([self._gaps(one, temperature) for one in looked.values()]):
            self._seen = (max(size[0], self._seen[0]), max(size[1], self._seen[1]), max(size[2], self._seen[2]))
            return True
        if not self.cached:
            raise ValueError(
                f"{type(plain_model(self._model)).__name__} writes with other log-probabilities than it has for the "
                "same tokens in one pass, so no trainer agrees with its answers: use another model"
            )
        self.cached = False
        return False

    def _differ(self, answers: Sequence[_Gaps]) -> bool:
        """Whether half of an answer's last tokens have other values, or half of all tokens, beyond rounding.

        In a short type a model that reads something else may stay below what rounding may be in the deepest models. So
        how far it goes in this one is measured, where sequences may be padded.
        """
        for one in answers:
            if float(one.gaps[len(one.gaps) // 2 :].quantile(0.5)) > FAR[one.size] * one.spread:
                return True
        if not answers or answers[0].size > 2 or not all(one.rounding for one in answers):
            return False
        gap = float(torch.cat([one.gaps / one.spread for one in answers]).quantile(0.5))
        rounding = float(torch.stack([torch.stack(list(one.rounding)) for one in answers]).mean(0).max())
        return gap > max(_NEAR, 4 * rounding)

    def _gaps(self, answer: Answer, temperature: float) -> _Gaps:
        """The distances of an answer's log-probabilities from those that are read; 0 where these are no numbers."""
        ids = [*answer.prompt, *answer.ids]
        logits = self._read(ids, len(answer.prompt), 0)
        size, wide = logits.itemsize, logits.float() / temperature
        targets = torch.tensor(answer.ids, device=logits.device)
        read, spread = chosen(wide, targets), float(wide.std())
        if not bool(read.isfinite().all()):
            return _Gaps(torch.zeros(len(answer.ids)), 1.0, size)
        rounding: list[torch.Tensor] = []
        for pad in _PADS if size <= 2 and spread > 0 else ():
            try:
                again = chosen(self._read(ids, len(answer.prompt), pad).float() / temperature, targets)
            except torch.OutOfMemoryError:
                raise
            except Exception:  # whatever a model raises that reads no padding, or has no positions for it
                rounding = []
                break
            rounding.append(((again - read).abs() / spread).quantile(0.5))
        return _Gaps((read.cpu() - answer.logprobs.float()).abs(), spread, size, rounding)

    def _read(self, ids: list[int], start: int, pad: int) -> torch.Tensor:
        """The logits that predict the tokens from one on, of a sequence with so much padding on the left."""
        device = self._model.device
        given = torch.tensor([[0] * pad + ids], device=device)
        mask = torch.tensor([[0] * pad + [1] * len(ids)], device=device)
        positions = {"position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if pad else {}
        logits: torch.Tensor = self._model(input_ids=given, attention_mask=mask, use_cache=False, **positions).logits[0]
        return logits[pad + start - 1 : -1]


class _Gaps(NamedTuple):
    """Distances of the log-probabilities of an answer from those that are read.

    Attributes:
        gaps: At each token.
        spread: The standard deviation of the logits.
        size: Bytes of a logit.
        rounding: For some lengths of padding, the share of the spread by which half of the tokens differ with it.
    """

    gaps: torch.Tensor
    spread: float
    size: int
    rounding: Sequence[torch.Tensor] = ()
