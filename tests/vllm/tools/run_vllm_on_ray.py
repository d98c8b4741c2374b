"""Trains on two workers of a Ray cluster, samples on two others, and writes figures as JSON."""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2] / "engines"))
from tiny_engine import ENGINE
from tiny_models import sgd

import twinkle
from twinkle import DeviceGroup, DeviceMesh, WeightSync
from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

PROMPTS = [[i + 1, 7, 9] for i in range(6)]
PARAMS = SamplingParams(n=2, max_new_tokens=8, seed=1)


def main(folder: str, output: str) -> None:
    groups = [DeviceGroup("trainer", 2, "CPU"), DeviceGroup("sampler", 2, "CPU")]
    with twinkle.session("ray", groups=groups, start_timeout=600):
        shards = DeviceMesh.from_sizes(fsdp_size=2, device_type="cpu")
        copies = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")
        model: Any = TransformersModel(folder, optimizer=sgd, device_mesh=shards, remote_group="trainer")
        sampler: Any = VLLMSampler(folder, device_mesh=copies, remote_group="sampler", **ENGINE)
        rollouts = twinkle.get(sampler.sample(PROMPTS, PARAMS))
        turned = twinkle.get(sampler.sample(PROMPTS[::-1], PARAMS))  # each prompt on the other engine
        first = [row.tolist() for row in rollouts.ids]
        model.forward_backward(rollouts)
        model.step()
        before = mismatch(twinkle.get(model.annotate(rollouts, "proximal")))["worst"]
        WeightSync(model, sampler)()
        rollouts = twinkle.get(sampler.sample(PROMPTS, PARAMS))
        after = mismatch(twinkle.get(model.annotate(rollouts, "proximal")))["worst"]
        versions = sorted({int(one) for row in rollouts.versions or [] for one in row})
        alike = first == [row.tolist() for row in turned[::-1].ids]
    Path(output).write_text(json.dumps({"before": before, "after": after, "versions": versions, "alike": alike}))


if __name__ == "__main__":
    main(*sys.argv[1:])
