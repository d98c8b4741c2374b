"""Supervised tuning of a Hugging Face model on Python's own documentation.

python examples/sft.py                                            # a tiny model in this process
python examples/sft.py --mode ray --workers 2                     # the same, sharded over two workers of a cluster
python examples/sft.py --model path/to/a/model --mode ray --workers 8 --rate 1e-5
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import chain, islice, repeat
from pydoc_data.topics import topics
from typing import Any

import torch
from libraries import without

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh
from twinkle.engines import JSONLSink, Throughput, TransformersModel

try:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3Config
except ModuleNotFoundError as error:
    sys.exit(without(error.name))


def tiny() -> tuple[Qwen3Config, PreTrainedTokenizerFast]:
    """The config of a tiny model, and a tokenizer that is trained on the spot."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(topics.values(), trainers.BpeTrainer(vocab_size=1024, special_tokens=["<end>"]))
    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16}
    heads: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen3Config(vocab_size=1024, eos_token_id=0, **sizes, **heads)
    return config, PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")


def collate(texts: list[str], tokenizer: Any) -> dict[str, torch.Tensor]:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    ids, attended = batch["input_ids"], batch["attention_mask"]
    return {"input_ids": ids, "attention_mask": attended, "labels": ids.masked_fill(attended == 0, -100)}


def train(path: str | None, mode: str, workers: int, steps: int, rate: float, log: str | None = None) -> list[float]:
    """The loss of each step."""
    source, tokenizer = tiny() if path is None else (path, AutoTokenizer.from_pretrained(path))
    texts = [text for topic in topics.values() for text in topic.split("\n\n") if len(text) > 80]
    losses: list[float] = []
    throughput, sink = Throughput(), None if log is None else JSONLSink(log)
    with twinkle.session(mode, groups=[DeviceGroup("trainer", workers, "GPU" if torch.cuda.is_available() else "CPU")]):
        loader = DataLoader(texts, batch_size=16, shuffle=True, collate_fn=partial(collate, tokenizer=tokenizer))
        model = TransformersModel(
            source,
            optimizer=partial(torch.optim.AdamW, lr=rate),
            max_grad_norm=1.0,
            micro_batch_size=8,
            device_mesh=DeviceMesh.from_sizes(fsdp_size=workers),
            remote_group="trainer",
        )
        for batch in islice(chain.from_iterable(repeat(loader)), steps):
            told = {**model.forward_backward(batch), **model.step()}
            losses.append(told["loss"])
            print(f"step {len(losses):4d}  loss {told['loss']:.4f}  gradient {told['grad_norm']:.3f}")
            if sink is not None:
                sink.log({**told, **throughput.mark(int(told["tokens"]))}, step=len(losses))
    return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a hub's name; a tiny random model without it")
    parser.add_argument("--mode", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--log", help="a file for metrics, a line of JSON a step")
    options = parser.parse_args()
    train(options.model, options.mode, options.workers, options.steps, options.rate, options.log)


if __name__ == "__main__":
    main()
