"""Supervised tuning of a Hugging Face model on Python's own documentation.

python examples/sft.py                                            # a tiny model in this process
python examples/sft.py --mode ray --workers 2                     # the same, sharded over two workers of a cluster
python examples/sft.py --model path/to/a/model --mode ray --workers 8 --rate 1e-5
"""

from __future__ import annotations

import argparse
from functools import partial
from itertools import chain, islice, repeat
from pydoc_data.topics import topics
from typing import Any

import tiny_model
import torch

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh
from twinkle.engines import JSONLSink, Throughput, TransformersModel


def collate(texts: list[str], tokenizer: Any) -> dict[str, torch.Tensor]:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    ids, attended = batch["input_ids"], batch["attention_mask"]
    return {"input_ids": ids, "attention_mask": attended, "labels": ids.masked_fill(attended == 0, -100)}


def train(path: str | None, mode: str, workers: int, steps: int, rate: float, log: str | None = None) -> list[float]:
    """The loss of each step."""
    source, tokenizer = tiny_model.from_path(path) if path else tiny_model.of_pieces(topics.values(), 1024)
    texts = [text for topic in topics.values() for text in topic.split("\n\n") if len(text) > 80]
    losses: list[float] = []
    throughput, sink = Throughput(), JSONLSink(log) if log else None
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
            figures = {**model.forward_backward(batch), **model.step()}
            losses.append(figures["loss"])
            print(f"step {len(losses):4d}  loss {figures['loss']:.4f}  gradient {figures['grad_norm']:.3f}")
            if sink:
                sink.log({**figures, **throughput.mark(int(figures["tokens"]))}, step=len(losses))
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
