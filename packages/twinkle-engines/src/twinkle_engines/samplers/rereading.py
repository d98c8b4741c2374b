"""Rereading: whether an answer has the log-probabilities with which it was written, token by token, when it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig

from twinkle_engines.models.forward import chosen
from twinkle_engines.models.neighbours import FAR
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_engines.samplers.answer import Answer

_FEW = 4  # tokens


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
        if not any(self._differs(one, temperature) for one in (longest, answers[0], answers[-1])):
            self._seen = (max(size[0], self._seen[0]), max(size[1], self._seen[1]), max(size[2], self._seen[2]))
            return True
        if not self.cached:
            raise ValueError(
                f"{type(plain_model(self._model)).__name__} writes with other log-probabilities than it has for the "
                "same tokens in one pass, so no trainer agrees with its answers: use another model"
            )
        self.cached = False
        return False

    def _differs(self, answer: Answer, temperature: float) -> bool:
        """Whether half of an answer's last tokens have other values, beyond rounding."""
        if not answer.ids:
            return False
        ids = torch.tensor([[*answer.prompt, *answer.ids]], device=self._model.device)
        logits = self._model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0]
        logits = logits[len(answer.prompt) - 1 : -1]
        wide = logits.float() / temperature
        read = chosen(wide, ids[0, len(answer.prompt) :]).cpu()
        gaps = (read - answer.logprobs.float()).abs()[len(answer.ids) // 2 :]
        limit = FAR[logits.itemsize] * float(wide.std())
        return bool(read.isfinite().all()) and float(gaps.quantile(0.5)) > limit
