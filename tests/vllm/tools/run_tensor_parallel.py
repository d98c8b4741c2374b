"""Samples with one engine over two processes, syncs a trainer's weights to it, and writes figures as JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "engines"))
from tiny_engine import ENGINE
from tiny_models import sgd

import twinkle
from twinkle import DeviceGroup, WeightSync
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"  # vLLM gives each process memory nodes of its own, if there are
PARAMS = SamplingParams(n=2, max_new_tokens=8, seed=1)


def main(folder: str, output: str, mode: Any = "local") -> None:
    groups = [DeviceGroup("trainer", 1, "CPU"), DeviceGroup("sampler", 1, "CPU")]
    more: dict[str, Any] = {"start_timeout": 600} if mode == "ray" else {}
    with twinkle.session(mode, groups=groups, lazy_collect=False, **more):
        model: Any = TransformersModel(folder, optimizer=sgd, remote_group="trainer")
        sampler: Any = VLLMSampler(folder, tensor_parallel_size=2, remote_group="sampler", **ENGINE)
        rollouts = sampler.sample([[1, 2], [3]], PARAMS)
        model.forward_backward(rollouts)
        model.step()
        before = mismatch(model.annotate(rollouts, "proximal"))["worst"]
        WeightSync(model, sampler)()
        rollouts = sampler.sample([[1, 2], [3]], PARAMS)
        after = mismatch(model.annotate(rollouts, "proximal"))["worst"]
        versions = sorted({int(one) for row in rollouts.versions or [] for one in row})
    Path(output).write_text(json.dumps({"before": before, "after": after, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
