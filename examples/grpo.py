"""GRPO of a Hugging Face model. It learns from its reward alone to continue to count from a digit.

python examples/grpo.py                                                 # a tiny random model in this process
python examples/grpo.py --mode threads --samplers 2 --ahead 32          # samplers work while the model trains
python examples/grpo.py --mode ray --workers 2 --samplers 2 --ahead 32  # the model is sharded over two workers
python examples/grpo.py --engine vllm                                   # samples with vLLM, from the extra vllm
python examples/grpo.py --model path/to/a/model --mode ray --workers 8 --samplers 8 --rate 1e-6

It leaves out: a reference (beta=), a correction for old samples (correction=), checkpoints (Checkpoints).
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import tiny_model
import torch
from counting import PROMPTS, counts_on, figures, report
from digits import told
from torch.optim.lr_scheduler import LinearLR

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh, WeightSync, engines
from twinkle.engines import Advantages, JSONLSink, SamplingParams, TransformersModel, mismatch, rewards

PARAMS = SamplingParams(n=32, max_new_tokens=4, stop=("\n",))
ENGINES: dict[str, Any] = {"hf": engines.TransformersSampler, "vllm": engines.VLLMSampler}


def train(options: argparse.Namespace) -> list[float]:
    """The mean reward of each step."""
    tiny = None if options.model else tiny_model.of_words(str(prompt["prompt"]) for prompt in PROMPTS)
    source, tokenizer = tiny or tiny_model.from_path(options.model)
    device = "GPU" if torch.cuda.is_available() else "CPU"
    groups = [DeviceGroup("trainer", options.workers, device), DeviceGroup("sampler", options.samplers, device)]
    history: list[float] = []
    sink = JSONLSink(options.log) if options.log else None
    with twinkle.session(options.mode, groups=groups, seed=options.seed):
        adamw, mesh = partial(torch.optim.AdamW, lr=options.rate), DeviceMesh.from_sizes(fsdp_size=options.workers)
        decay = partial(LinearLR, start_factor=1.0, end_factor=0.1, total_iters=options.steps)
        trained: Any = {"optimizer": partial(adamw, weight_decay=0.0), "schedule": decay, "max_grad_norm": 1.0}
        model = TransformersModel(source, **trained, device_mesh=mesh, remote_group="trainer")
        placement: Any = {"device_mesh": DeviceMesh.from_sizes(dp_size=options.samplers), "remote_group": "sampler"}
        sampler = ENGINES[options.engine](source, tokenizer=tokenizer, params=PARAMS, dtype="float32", **placement)
        grader, sync = rewards(counts_on, **placement), WeightSync(model, sampler)
        sync()
        loader = DataLoader(PROMPTS * options.steps, batch_size=len(PROMPTS))
        stages = (sampler.sample, grader.grade, Advantages("grpo", scale=False, **placement).add)
        with twinkle.stream(loader, *stages, ahead=options.ahead, max_lag=2) as batches:
            for batch in batches:
                rewarded, versions = zip(*twinkle.get(twinkle.map(batch, figures)), strict=True)
                history.append(sum(rewarded) / len(rewarded))
                metrics: dict[str, Any] = {"reward": history[-1], "lag": sync.version - min(versions)}
                if sink and not metrics["lag"]:  # the same weights, so that the engines alone differ
                    metrics["mismatch"] = mismatch(model.annotate(batch, "proximal"))
                metrics |= {**model.forward_backward(batch, loss="grpo"), **model.step()}
                sync()
                told(len(history), {name: metrics[name] for name in ("reward", "entropy", "lag")})
                if sink:
                    sink.log(metrics, step=len(history))
        report(history, twinkle.get(model.annotate(grader.grade(sampler.sample(PROMPTS)), "proximal")))
    return history


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a hub's name; a tiny random model without it")
    parser.add_argument("--mode", choices=("local", "threads", "ray"), default="local")
    parser.add_argument("--engine", choices=("hf", "vllm"), default="hf", help="what samples")
    numbers: dict[str, Any] = {"workers": 1, "samplers": 1, "steps": 80, "rate": 3e-3, "seed": 0, "ahead": 0}
    for name, default in numbers.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--log", help="a file for metrics, a line of JSON a step")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
