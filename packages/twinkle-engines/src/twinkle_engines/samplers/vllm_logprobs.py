"""Has vLLM report log-probabilities of the distribution at the temperature, before tokens are left out."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates

try:  # the interface of vLLM's second model runner, where there is one
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as SlotProcessor
except ImportError:  # pragma: no cover
    SlotProcessor = object

_GREEDY = 1e-5
"""Below this temperature vLLM takes the likeliest token, and divides by nothing."""


class NormalizedLogits(LogitsProcessor, SlotProcessor):  # type: ignore[misc]  # vllm is not there when types are checked
    """Turns a row's logits into the temperature times the log-probabilities at it.

    vLLM then divides by the temperature and leaves out tokens by min_p, top_k and top_p, none of which a constant of
    the row changes. What is left are the log-probabilities before that, which the mode "processed_logits" reports.

    It is a logits processor for both of vLLM's model runners: the first names requests by their place in the batch,
    which `update_state` reports, the second by a slot.

    Args:
        vllm_config: vLLM's.
        place: The device of the logits, or the second runner's state of requests, which has it.
        is_pin_memory: As vLLM gives it to a processor of the first runner.
    """

    def __init__(self, vllm_config: Any, place: Any, is_pin_memory: bool = False) -> None:
        self._by_place: dict[int, float] = {}
        self._device = torch.device(getattr(place, "device", place))
        self._slots = torch.ones(getattr(place, "max_num_reqs", 0))
        self._divisors = self._slots.to(self._device, copy=True)
        self._is_stale = False

    def is_argmax_invariant(self) -> bool:
        """False, so that it comes before the temperature, and at greedy rows too."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """Follow the requests of the first runner."""
        if process_dict_updates(self._by_place, batch_update, lambda params, prompt, output: divisor(params)):
            self._is_stale = True

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Note the temperature of a slot of the second runner."""
        self._slots[req_idx] = divisor(sampling_params)
        self._is_stale = True
        return True

    def apply_staged_writes(self) -> None:
        """Bring the temperatures of the second runner's slots to the device."""
        if self._is_stale:
            self._divisors.copy_(self._slots)
            self._is_stale = False

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Logits (rows, vocabulary) of the same distributions, whose values are reported.

        Args:
            logits: vLLM's, in float32.
            ctx: Which slot each row belongs to; of the second runner.
        """
        if ctx is None:
            if self._is_stale or len(self._divisors) != len(logits):
                rows = [self._by_place.get(row, 1.0) for row in range(len(logits))]
                self._divisors = torch.tensor(rows, device=self._device)
                self._is_stale = False
            divisors = self._divisors
        else:
            divisors = self._divisors[ctx.expanded_idx_mapping]
        return (logits / divisors[:, None]).log_softmax(-1).mul_(divisors[:, None])


def divisor(params: Any) -> float:
    """The number that vLLM divides a request's logits by."""
    return float(params.temperature) if params.temperature >= _GREEDY else 1.0
