from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tiny_engine import ENGINE
from tiny_models import plain_logprobs, sgd
from transformers import AutoModelForCausalLM

import twinkle
from twinkle import DeviceGroup, WeightSync, concat
from twinkle.engines import Rollouts, SamplingParams, TransformersModel, VLLMSampler

if TYPE_CHECKING:
    from pathlib import Path

LONG = SamplingParams(n=4, max_new_tokens=350, seed=0)
GROUPS = [DeviceGroup("trainer", 1, "CPU"), DeviceGroup("sampler", 1, "CPU")]


def test_calls_at_work_are_batched_and_take_weights_between_two_tokens(folder: str, tmp_path: Path) -> None:
    with twinkle.session("threads", groups=GROUPS):
        model: Any = TransformersModel(folder, optimizer=sgd, remote_group="trainer")
        sampler: Any = VLLMSampler(folder, params=LONG, remote_group="sampler", **ENGINE)
        long, short = sampler.sample([[1, 2]]), sampler.sample([[3]], SamplingParams(max_new_tokens=1))
        short.wait(120)
        assert not long.done()
        long.wait(120)

        sync = WeightSync(model, sampler)
        parts: list[Rollouts] = []
        model.save_pretrained(str(tmp_path / "0"))
        with twinkle.stream([[[row]] for row in range(1, 13)], sampler.sample, ahead=6, max_lag=6) as batches:
            for batch in batches:
                parts.append(twinkle.get(batch))
                model.forward_backward(parts[-1])
                model.step()
                model.save_pretrained(str(tmp_path / str(sync.version + 1)))
                sync()
    mixed = check(concat(parts), tmp_path)
    assert mixed > 0


def check(rollouts: Rollouts, folder: Path) -> int:
    """Each token has the log-probability of its version, the tokens before it read anew; the number of mixed rows."""
    assert rollouts.versions is not None and rollouts.logprobs is not None and rollouts.mask is not None
    mixed = 0
    for ids, versions, own, mask in zip(rollouts.ids, rollouts.versions, rollouts.logprobs, rollouts.mask, strict=True):
        assert versions.tolist() == sorted(versions.tolist())
        mixed += len(set(versions.tolist())) > 1
        for version in set(versions[mask.bool()].tolist()):
            model = AutoModelForCausalLM.from_pretrained(folder / str(version))
            theirs = plain_logprobs(model, ids)
            chosen = mask.bool() & (versions == version)
            assert float((own - theirs)[chosen].detach().abs().max()) < 1e-3
    return mixed
