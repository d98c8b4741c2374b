"""Supervised tuning of a Hugging Face model on Python's own documentation.

python examples/sft.py                                            # a tiny model in this process
python examples/sft.py --mode ray --workers 2                     # the same, sharded over two workers of a cluster
torchrun --nproc-per-node 2 examples/sft.py --workers 2           # the same, sharded over the processes of a launcher
python examples/sft.py --model path/to/a/model --mode ray --workers 8 --rate 1e-5
python examples/sft.py --checkpoints run                          # the next start continues from the last checkpoint

Where the variable STOP_FILE names a file, the program saves and ends once the file is there.
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from pydoc_data.topics import topics
from time import perf_counter
from typing import Any

import tiny_model
import torch

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh
from twinkle.engines import JSONLSink, TransformersModel, load, save

BATCH = 16


def collate(texts: list[str], tokenizer: Any) -> dict[str, torch.Tensor]:
    batch = tokenizer(texts, padding=True, truncation=True, max_length=128, return_tensors="pt")
    ids, attended = batch["input_ids"], batch["attention_mask"]
    return {"input_ids": ids, "attention_mask": attended, "labels": ids.masked_fill(attended == 0, -100)}


def train(options: argparse.Namespace) -> list[float]:
    """The loss of each step since the start, or since the checkpoint that the run continues from."""
    leads = os.environ.get("RANK", "0") == "0"  # a launcher runs this program in every process
    source, tokenizer = (
        tiny_model.from_path(options.model) if options.model else tiny_model.of_pieces(topics.values(), 1024)
    )
    texts = [text for topic in topics.values() for text in topic.split("\n\n") if len(text) > 80]
    losses: list[float] = []
    sink = JSONLSink(options.log) if options.log and leads else None
    with twinkle.session(options.mode, groups=[DeviceGroup("trainer", options.workers, options.device)]):
        loader = DataLoader(texts, batch_size=BATCH, shuffle=True, collate_fn=partial(collate, tokenizer=tokenizer))
        model = TransformersModel(
            source,
            optimizer=partial(torch.optim.AdamW, lr=options.rate),
            max_grad_norm=1.0,
            micro_batch_size=8,
            device_mesh=DeviceMesh.from_sizes(fsdp_size=options.workers),
            remote_group="trainer",
        )
        epoch = len(loader)
        if options.checkpoints:
            load(options.checkpoints, model=model, loader=loader)
        done = loader.epoch * epoch + loader.position // BATCH
        batches = chain.from_iterable(repeat(loader))
        stopped = stops()
        while done < options.steps and not stopped:
            started = perf_counter()
            metrics = {**model.forward_backward(next(batches)), **model.step()}
            done, stopped = done + 1, stops()
            losses.append(metrics["loss"])
            if leads:
                print(f"step {done:4d}  loss {losses[-1]:.4f}  gradient {metrics['grad_norm']:.3f}", flush=True)
            if sink:
                sink.log({**metrics, "tokens_per_second": metrics["tokens"] / (perf_counter() - started)}, step=done)
            if options.checkpoints and (done % options.every == 0 or done == options.steps or stopped):
                save(options.checkpoints, model=model, loader=loader)
    return losses


def stops() -> bool:
    """Whether the file is there by which a scheduler asks for the end."""
    return Path(os.environ.get("STOP_FILE") or os.devnull).is_file()


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a hub's name; a tiny random model without it")
    parser.add_argument("--mode", choices=("local", "ray"), default="local")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", choices=("CPU", "GPU"), default="GPU" if torch.cuda.is_available() else "CPU")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rate", type=float, default=5e-3)
    parser.add_argument("--checkpoints", help="a folder that all workers see")
    parser.add_argument("--every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--log", help="a file for metrics, a line of JSON a step")
    return train(parser.parse_args(arguments))


if __name__ == "__main__":
    main()
