"""GRPO of a Hugging Face model. It learns from its reward alone to continue to count from a digit.

python examples/grpo.py                                                 # a tiny random model in this process
python examples/grpo.py --mode threads --samplers 2 --ahead 32          # samplers work while the model trains
python examples/grpo.py --mode ray --workers 2 --samplers 2 --ahead 32  # the model is sharded over two workers
python examples/grpo.py --engine vllm                                   # samples with vLLM, from the extra vllm
python examples/grpo.py --model path/to/a/model --mode ray --workers 8 --samplers 8 --rate 1e-6
"""

from __future__ import annotations

import argparse
from functools import partial
from time import perf_counter
from typing import Any

import tiny_model
import torch
from counting import PROMPTS, counts_on, report
from torch.optim.lr_scheduler import LinearLR

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh, WeightSync, engines
from twinkle.engines import Advantages, Rollouts, SamplingParams, TransformersModel, mismatch, rewards

PARAMS = SamplingParams(n=32, max_new_tokens=4, stop=("\n",))
ENGINES: dict[str, Any] = {"hf": engines.TransformersSampler, "vllm": engines.VLLMSampler}


def figures(rollouts: Rollouts) -> list[tuple[float, int, int]]:
    """The mean reward, the oldest version and the tokens of each row, computed where the rows are."""
    return [
        (row.sequence_rewards().mean().item(), int(row.tokens["versions"].min()), sum(row.lengths)) for row in rollouts
    ]


def train(options: argparse.Namespace) -> list[float]:
    """The mean reward of each step."""
    texts = [str(prompt["prompt"]) for prompt in PROMPTS]
    source, tokenizer = tiny_model.from_path(options.model) if options.model else tiny_model.of_words(texts)
    device = "GPU" if torch.cuda.is_available() else "CPU"
    groups = [DeviceGroup("trainer", options.workers, device), DeviceGroup("sampler", options.samplers, device)]
    history: list[float] = []
    sink = engines.JSONLSink(options.log) if options.log else None
    with twinkle.session(options.mode, groups=groups, seed=options.seed):
        model = TransformersModel(
            source,
            optimizer=partial(torch.optim.AdamW, lr=options.rate, weight_decay=0.0),
            schedule=partial(LinearLR, start_factor=1.0, end_factor=0.1, total_iters=options.steps),
            max_grad_norm=1.0,
            device_mesh=DeviceMesh.from_sizes(fsdp_size=options.workers),
            remote_group="trainer",
        )
        placement: Any = {"device_mesh": DeviceMesh.from_sizes(dp_size=options.samplers), "remote_group": "sampler"}
        sampler = ENGINES[options.engine](source, tokenizer=tokenizer, params=PARAMS, dtype="float32", **placement)
        grader = rewards(counts_on, **placement)
        sync = WeightSync(model, sampler)
        sync()
        loader = DataLoader(PROMPTS * options.steps, batch_size=len(PROMPTS))
        stages = (sampler.sample, grader.grade, Advantages("grpo", scale=False, **placement).add)
        with twinkle.stream(loader, *stages, ahead=options.ahead, max_lag=2) as batches:
            began = perf_counter()
            for batch in batches:
                rewarded, versions, tokens = zip(*twinkle.get(twinkle.map(batch, figures)), strict=True)
                history.append(sum(rewarded) / len(rewarded))
                lag = sync.version - min(versions)
                metrics: dict[str, Any] = {"reward": history[-1], "lag": lag}
                if sink and lag == 0:  # the same weights, so that the engines alone differ
                    metrics["mismatch"] = mismatch(model.annotate(batch, "proximal"))
                metrics |= {**model.forward_backward(batch, loss="grpo"), **model.step()}
                started = perf_counter()
                sync()
                metrics["sync_seconds"] = perf_counter() - started
                print(f"step {len(history):4d}  reward {history[-1]:.3f}  loss {metrics['loss']:+.4f}  lag {lag}")
                if sink:
                    metrics["tokens_per_second"] = sum(tokens) / (perf_counter() - began)
                    sink.log(metrics, step=len(history))
                began = perf_counter()
        rollouts = twinkle.get(grader.grade(sampler.sample(PROMPTS)))
        ratio = mismatch(model.annotate(rollouts, "proximal"))
    report(history, rollouts)
    print(f"the sampler's probabilities against the trainer's: ratio {ratio['mean']:.6f}, worst {ratio['worst']:.6f}")
    return history


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a hub's name; a tiny random model without it")
    parser.add_argument("--mode", choices=("local", "threads", "ray"), default="local")
    parser.add_argument("--engine", choices=("hf", "vllm"), default="hf", help="what samples")
    parser.add_argument("--workers", type=int, default=1, help="ranks that hold the model; threads have one")
    parser.add_argument("--samplers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--ahead", type=int, default=0, help="prompts at work ahead of the loop")
    parser.add_argument("--log", help="a file for metrics, a line of JSON a step")
    parser.add_argument("--seed", type=int, default=0)
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
