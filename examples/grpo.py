"""GRPO of a Hugging Face model, which learns to count on from a digit by nothing but its reward.

python examples/grpo.py                                                 # a tiny random model in this process
python examples/grpo.py --mode threads --samplers 2 --ahead 32          # samplers work while the model trains
python examples/grpo.py --mode ray --workers 2 --samplers 2 --ahead 32  # the model is sharded over two workers
python examples/grpo.py --engine vllm                                   # vLLM writes, of the extra vllm
python examples/grpo.py --model path/to/a/model --mode ray --workers 8 --samplers 8 --rate 1e-6
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from time import perf_counter
from typing import Any

import torch
from libraries import without

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh, WeightSync
from twinkle.engines import (
    JSONLSink,
    Rollouts,
    SamplingParams,
    Throughput,
    TransformersModel,
    TransformersSampler,
    VLLMSampler,
    advantages,
    mismatch,
    rewards,
)

try:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config
except ModuleNotFoundError as error:
    sys.exit(without(error.name))

PROMPTS = [{"prompt": f"Count on: {digit}", "digit": digit} for digit in range(10)]
PARAMS = SamplingParams(n=32, max_new_tokens=4, stop=("\n",))


def tiny() -> tuple[Qwen3Config, PreTrainedTokenizerFast]:
    """The config of a tiny model, and a tokenizer of words that is trained on the spot."""
    tokenizer = Tokenizer(models.WordLevel())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(special_tokens=["<end>"])
    tokenizer.train_from_iterator([str(prompt["prompt"]) for prompt in PROMPTS], trainer)
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 4}
    config = Qwen3Config(vocab_size=tokenizer.get_vocab_size(), eos_token_id=0, **sizes, **heads)
    return config, PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def counts_on(completions: list[str], digit: list[int], **_: Any) -> list[float]:
    """The share of words at their place among the two right ones; one that does not look at the digit gets 0.1."""
    graded = []
    for text, first in zip(completions, digit, strict=True):
        words, right = text.split(), [str((first + 1) % 10), str((first + 2) % 10)]
        graded.append(sum(map(str.__eq__, words, right)) / max(len(words), 2))
    return graded


def train(options: argparse.Namespace) -> list[float]:
    """The mean reward of each step."""
    path, copies = options.model, DeviceMesh.from_sizes(dp_size=options.samplers)
    source, tokenizer = tiny() if path is None else (path, AutoTokenizer.from_pretrained(path))
    device = "GPU" if torch.cuda.is_available() else "CPU"
    groups = [DeviceGroup("trainer", options.workers, device), DeviceGroup("sampler", options.samplers, device)]
    history: list[float] = []
    throughput, sink = Throughput(), None if options.log is None else JSONLSink(options.log)
    with twinkle.session(options.mode, groups=groups, seed=options.seed):
        loader = DataLoader(PROMPTS * options.steps, batch_size=len(PROMPTS))
        model = TransformersModel(
            source,
            optimizer=partial(torch.optim.AdamW, lr=options.rate, weight_decay=0.0),
            schedule=partial(
                torch.optim.lr_scheduler.LinearLR, start_factor=1.0, end_factor=0.1, total_iters=options.steps
            ),
            max_grad_norm=1.0,
            device_mesh=DeviceMesh.from_sizes(fsdp_size=options.workers),
            remote_group="trainer",
        )
        placement: dict[str, Any] = {"device_mesh": copies, "remote_group": "sampler"}
        engine: Any = VLLMSampler if options.engine == "vllm" else TransformersSampler
        sampler = engine(source, tokenizer=tokenizer, params=PARAMS, dtype="float32", **placement)
        grader = rewards(counts_on, **placement)
        sync = WeightSync(model, sampler)
        sync()
        with twinkle.stream(loader, sampler.sample, grader.grade, ahead=options.ahead, max_lag=2) as batches:
            for batch in batches:
                rollouts = advantages(twinkle.get(batch), "grpo", scale=False)
                history.append(rollouts.sequence_rewards().mean().item())
                told = {"reward": history[-1], **model.forward_backward(rollouts, loss="grpo"), **model.step()}
                lag, started = sync.version - int(rollouts.tokens["versions"].min()), perf_counter()
                sync()
                told |= {"lag": lag, "sync_seconds": perf_counter() - started}
                print(f"step {len(history):4d}  reward {history[-1]:.3f}  loss {told['loss']:+.4f}  lag {lag}")
                if sink is not None:
                    sink.log({**told, **throughput.mark(sum(rollouts.lengths))}, step=len(history))
        report(history, twinkle.get(grader.grade(sampler.sample(PROMPTS))), model)
    return history


def report(history: list[float], rollouts: Rollouts, model: TransformersModel) -> None:
    """Say what became of it: rewards, some answers, and whether both engines agree on their probabilities."""
    ratio = mismatch(rollouts, twinkle.get(model.logprobs(rollouts)))
    graded, texts = rollouts.sequence_rewards(), rollouts.completions or []
    print(
        f"\nreward {history[0]:.2f} -> {graded.mean():.2f}; answers that are right: {(graded == 1).float().mean():.0%}"
    )
    print("1.00 is success: every answer counts on. 0.10 is chance, 0.50 one digit that is right and one that is not.")
    for row, group in zip(rollouts, rollouts.groups(), strict=True):
        print(f"  {(row.prompts or [''])[0]} -> {', '.join(texts[group.start : group.start + 4])}")
    print(f"the sampler's probabilities against the trainer's: ratio {ratio['mean']:.6f}, worst {ratio['worst']:.6f}")


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
