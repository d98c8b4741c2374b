"""Sinks: what is written can be read again, and a library that is not there is named."""

from __future__ import annotations

import importlib.util
import json
import math
import pickle
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from twinkle.engines import JSONLSink, MLflowSink, TensorBoardSink, WandbSink

if TYPE_CHECKING:
    from pathlib import Path

    from twinkle_engines.tracking.sinks import Sink


def test_lines_of_json_come_back(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "metrics.jsonl"
    first = JSONLSink(path)
    sink: Sink = first
    sink.log({"loss": torch.tensor(0.5), "tokens": np.int64(7), "sync": {"seconds": 1.25, "lag": {"worst": 3}}}, step=1)
    sink.log({"loss": math.nan, "high": math.inf, "low": -math.inf}, step=2)
    first.close()
    JSONLSink(path).log({"loss": 0.25}, step=3)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 0.5, "tokens": 7, "sync/seconds": 1.25, "sync/lag/worst": 3},
        {"step": 2, "loss": "NaN", "high": "Infinity", "low": "-Infinity"},
        {"step": 3, "loss": 0.25},
    ]


@pytest.mark.parametrize("value", ["high", None, [1.0], torch.ones(2), np.ones(2)])
def test_a_metric_that_is_no_number_is_refused(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(TypeError, match="metric outer/loss is a"):
        JSONLSink(path).log({"fine": 1.0, "outer": {"loss": value}}, step=1)
    assert not path.exists()


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.log({"loss": torch.tensor(0.5), "sync": {"seconds": 1.25}}, step=1)
    sink.log({"loss": 0.25}, step=3)
    sink.close()
    read = EventAccumulator(str(tmp_path)).Reload()
    scalars = {name: [(event.step, event.value) for event in read.Scalars(name)] for name in read.Tags()["scalars"]}
    assert scalars == {"loss": [(1, 0.5), (3, 0.25)], "sync/seconds": [(1, 1.25)]}


@pytest.mark.slow
def test_wandb_offline_keeps_what_was_logged(tmp_path: Path) -> None:
    sink = WandbSink(project="test", mode="offline", dir=tmp_path)
    sink.log({"loss": torch.tensor(0.5), "sync": {"seconds": 1.25}}, step=1)
    sink.log({"loss": 0.375}, step=3)
    sink.close()
    (run,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    texts, until = (b"loss", b"0.5", b"0.375", b"sync/seconds", b"1.25"), time.monotonic() + 60.0
    # Its own process writes the file, and on a busy machine the end comes after `close`.
    while not all(text in run.read_bytes() for text in texts):
        assert time.monotonic() < until, run.read_bytes()
        time.sleep(0.05)


def test_a_library_that_is_not_installed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("mlflow") is not None:
        monkeypatch.chdir(tmp_path)
        MLflowSink(run_name="test").log({"loss": 0.5}, step=1)
        assert any(tmp_path.rglob("*"))
        return
    with pytest.raises(ImportError, match="pip install mlflow"):
        MLflowSink(run_name="test")


def test_a_metric_named_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="step"):
        JSONLSink(tmp_path / "metrics.jsonl").log({"step": 7, "loss": 1.0}, step=1)


def test_a_run_that_was_resumed_takes_the_place_of_the_lines_after(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = JSONLSink(path)
    for step in (1, 2, 3, 4):
        first.log({"loss": 1.0}, step=step)
    path.write_text(path.read_text() + '{"step": 5, "lo')  # it was killed
    first.close()
    again = JSONLSink(path)
    for name in ("loss", "test"):
        again.log({name: 2.0}, step=3)
    told = [json.loads(line) for line in path.read_text().splitlines()]
    assert told == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 1.0},
        {"step": 3, "loss": 2.0},
        {"step": 3, "test": 2.0},
    ]


def test_a_file_has_one_sink_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first, second = JSONLSink(path), JSONLSink(path)
    for step in (1, 2):
        first.log({"loss": 1.0}, step=step)
    with pytest.raises(ValueError, match="another sink"):
        second.log({"test": 2.0}, step=1)
    program = f"from twinkle.engines import JSONLSink; JSONLSink({str(path)!r}).log({{'a': 1}}, step=1)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "another sink" in ended.stderr
    first.log({"loss": 1.0}, step=3)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]
    first = pickle.loads(pickle.dumps(first))  # the one that had the file is gone
    second.log({"test": 2.0}, step=2)
    with pytest.raises(ValueError, match="another sink"):
        first.log({"loss": 1.0}, step=4)
    second.close()
    first.log({"loss": 1.0}, step=2)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1, "loss": 1.0},
        {"step": 2, "loss": 1.0},
    ]


@pytest.mark.parametrize("path", [3, None, b"x", ["x"], object(), "", "."])
def test_a_path_that_is_no_file_is_refused(path: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="path"):
        JSONLSink(path)


@pytest.mark.parametrize("metrics", [{"a/b": 1, "a": {"b": 2}}, {1: 1, "1": 2}, {"a": 10**400}])
def test_metrics_of_one_name_and_beyond_numbers_are_refused(tmp_path: Path, metrics: Any) -> None:
    with pytest.raises(ValueError, match="metric"):
        JSONLSink(tmp_path / "metrics.jsonl").log(metrics, step=1)


@pytest.mark.parametrize("step", [1.5, "3", True, None])
def test_a_step_is_a_whole_number(tmp_path: Path, step: Any) -> None:
    for sink in (JSONLSink(tmp_path / "metrics.jsonl"), TensorBoardSink(tmp_path)):
        with pytest.raises(TypeError, match="step"):
            sink.log({"loss": 1.0}, step=step)
