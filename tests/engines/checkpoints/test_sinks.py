"""Sinks: what is written can be read again, and a library that is not there is named."""

from __future__ import annotations

import importlib
import json
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from twinkle.engines import JSONLSink, TensorBoardSink, WandbSink

if TYPE_CHECKING:
    from pathlib import Path


def test_lines_of_json_come_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "metrics.jsonl"
    sink = JSONLSink(path)
    sink.log({"loss": torch.tensor(0.5), "tokens": np.int64(7), "sync": {"seconds": 1.25, "lag": {"worst": 3}}}, step=1)
    sink.log({"loss": math.nan, "high": math.inf, "low": -math.inf}, step=2)
    JSONLSink(path).log({"loss": 0.25}, step=3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 0.5, "tokens": 7, "sync/seconds": 1.25, "sync/lag/worst": 3},
        {"step": 2, "loss": "NaN", "high": "Infinity", "low": "-Infinity"},
        {"step": 3, "loss": 0.25},
    ]


def test_a_run_that_was_resumed_logs_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    sink = JSONLSink(path)
    for step in (1, 2, 3):
        sink.log({"loss": step}, step=step)
    with path.open("a") as file:
        file.write('{"step": 4, "lo')  # the run was killed
    resumed = JSONLSink(path)
    for step, loss in ((2, 20), (3, 30), (3, 31), (5, 50), (4, 40)):
        resumed.log({"loss": loss}, step=step)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(one["step"], one["loss"]) for one in lines] == [(1, 1), (2, 20), (3, 31), (4, 40)]


@pytest.mark.parametrize("value", ["high", None, [1.0], torch.ones(2), np.ones(2)])
def test_a_metric_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(TypeError, match="metric outer/loss is"):
        JSONLSink(path).log({"fine": 1.0, "outer": {"loss": value}}, step=1)
    assert not path.exists()


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.log({"loss": torch.tensor(0.5), "sync": {"seconds": 1.25}}, step=1)
    sink.log({"loss": 0.25}, step=3)
    read = EventAccumulator(str(tmp_path)).Reload()
    scalars = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    assert scalars == {"loss": [(1, 0.5), (3, 0.25)], "sync/seconds": [(1, 1.25)]}


@pytest.mark.slow
def test_wandb_offline_keeps_what_was_logged(tmp_path: Path) -> None:
    sink = WandbSink(project="test", mode="offline", dir=tmp_path)
    sink.log({"loss": torch.tensor(0.5), "sync": {"seconds": 1.25}}, step=1)
    sink.log({"loss": 0.375}, step=3)
    importlib.import_module("wandb").finish()
    (run,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    texts, until = (b"loss", b"0.5", b"0.375", b"sync/seconds", b"1.25"), time.monotonic() + 60.0
    # Its own process writes the file, and on a busy machine the end comes after `finish`.
    while not all(text in run.read_bytes() for text in texts):
        assert time.monotonic() < until, run.read_bytes()
        time.sleep(0.05)


def test_the_number_of_a_line_is_that_of_its_step(tmp_path: Path) -> None:
    JSONLSink(tmp_path / "metrics.jsonl").log({"step": 7, "loss": 1.0}, step=1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.0}\n'
