"""Throughput against the formula's own example."""

from __future__ import annotations

import pytest

from twinkle.engines import Throughput


def test_the_utilization_of_palm() -> None:
    # PaLM 540B: 238.3 thousand tokens a second on 6144 TPU v4 of 275 TFLOPs are 45.7 % without attention
    metrics = Throughput(540_350_000_000, devices=6144, flops=275e12).metrics(238_300, 1.0)
    assert metrics["mfu"] == pytest.approx(0.457, abs=1e-3)
    assert metrics["tokens_per_second"] == 238_300


def test_marks_measure_the_time_between_them() -> None:
    throughput = Throughput()
    first, second = throughput.mark(100), throughput.mark(50)
    for metrics, tokens in ((first, 100), (second, 50)):
        assert metrics.keys() == {"tokens_per_second", "seconds"}
        assert metrics["tokens_per_second"] * metrics["seconds"] == pytest.approx(tokens)


def test_numbers_are_above_0() -> None:
    with pytest.raises(ValueError, match="but got devices=0"):
        Throughput(devices=0)
