"""Throughput: tokens a second, and the share of the accelerators' arithmetic that a model uses."""

from __future__ import annotations

import time

from twinkle_engines.batches.given import above_zero, fraction


class Throughput:
    """Tokens a second between two marks, and the model FLOPs utilization (MFU).

    MFU = tokens a second x 6 x parameters / (devices x FLOPs a second of one): training costs about 6 FLOPs for each
    parameter and token, 2 forward and 4 backward (Kaplan et al. 2020, arXiv 2001.08361, section 2.1; MFU: PaLM, arXiv
    2204.02311, appendix B). Attention is left out, so it is an estimate from below for long sequences. For a mixture of
    experts, count the parameters that are active for a token.

    Args:
        parameters: Number of parameters; None leaves MFU out.
        devices: Number of accelerators.
        flops: FLOPs a second of one accelerator in the dtype of training, such as 989e12 (H100, dense bfloat16); None
            leaves MFU out.

    Raises:
        ValueError: A number is not above 0.
    """

    def __init__(self, parameters: int | None = None, *, devices: int = 1, flops: float | None = None) -> None:
        for name, value in (("parameters", parameters), ("devices", devices), ("flops", flops)):
            if value is not None or name == "devices":
                above_zero(name, value)
        self._work = None if parameters is None or flops is None else 6 * parameters / (devices * flops)
        self._since = time.perf_counter()

    def mark(self, tokens: int) -> dict[str, float]:
        """The metrics since the last mark, or since this object was made.

        Args:
            tokens: Tokens of all ranks that were trained on meanwhile.

        Returns:
            "tokens_per_second", "seconds", and "mfu" where it is known.
        """
        now = time.perf_counter()
        seconds, self._since = now - self._since, now
        return self.metrics(tokens, seconds)

    def metrics(self, tokens: int, seconds: float) -> dict[str, float]:
        """The same for a time that was measured elsewhere.

        Args:
            tokens: Tokens of all ranks.
            seconds: Above 0.

        Raises:
            TypeError: One is no number.
            ValueError: One is out of its range.
        """
        count = fraction("tokens", tokens)
        if not count >= 0:
            raise ValueError(f"tokens is at or above 0, got {tokens}")
        rate = count / above_zero("seconds", seconds)
        found = {"tokens_per_second": rate, "seconds": seconds}
        return found if self._work is None else {**found, "mfu": rate * self._work}
