"""Supervised fine-tuning of a Hugging Face model on Python's own documentation.

python examples/sft.py                                            # a tiny model in this process, about a minute
python examples/sft.py --mode ray --workers 2                     # the same, sharded over two workers of a cluster
torchrun --nproc-per-node 2 examples/sft.py --workers 2           # the same, sharded over the processes of a launcher
python examples/sft.py --model path/to/a/model --mode ray --workers 8 --rate 1e-5
python examples/sft.py --checkpoints run                          # the next start continues from the last checkpoint

Where the variable STOP_FILE names a file, the program saves and ends once the file is there. It leaves out: chats with
a mask (supervised takes them), packs (max_tokens=), adapters (lora=), a loss on held-out texts (evaluate_loss).
"""

from __future__ import annotations

import argparse
import os
from functools import partial
from itertools import chain, repeat
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import tiny_model
import torch

import twinkle
from twinkle import DataLoader, DeviceGroup, DeviceMesh
from twinkle.engines import JSONLSink, TransformersModel, load, save, supervised

BATCH = 16


def train(options: argparse.Namespace) -> list[float]:
    """The loss of each step since the start, or since the checkpoint that the run continues from."""
    leads = os.environ.get("RANK", "0") == "0"  # a launcher runs this program in every process
    tiny = None if options.model else tiny_model.of_pieces(topics.values(), 1024)
    source, tokenizer = tiny or tiny_model.from_path(options.model)
    rows = [{"text": text} for topic in topics.values() for text in topic.split("\n\n") if len(text) > 80]
    losses: list[float] = []
    sink = JSONLSink(options.log) if options.log and leads else None
    with twinkle.session(options.mode, groups=[DeviceGroup("trainer", options.workers, options.device)]):
        made = partial(supervised, tokenizer=tokenizer, max_length=128)
        loader = DataLoader(rows, batch_size=BATCH, shuffle=True, collate_fn=made)
        adamw = partial(torch.optim.AdamW, lr=options.rate)
        mesh = DeviceMesh.from_sizes(fsdp_size=options.workers)
        placed: Any = {"device_mesh": mesh, "remote_group": "trainer"}
        model = TransformersModel(source, optimizer=adamw, max_grad_norm=1.0, micro_batch_size=8, **placed)
        if options.checkpoints:
            load(options.checkpoints, model=model, loader=loader)
        done = loader.epoch * len(loader) + loader.position // BATCH
        batches = chain.from_iterable(repeat(loader))
        stop = Path(os.environ.get("STOP_FILE") or os.devnull)  # the file by which a scheduler asks for the end
        while done < options.steps and not stop.is_file():
            metrics, done = {**model.forward_backward(next(batches)), **model.step()}, done + 1
            losses.append(metrics["loss"])
            if leads:
                print(f"step {done:4d}  loss {losses[-1]:.4f}  gradient {metrics['grad_norm']:.3f}", flush=True)
            if sink:
                sink.log(metrics, step=done)
            if options.checkpoints and (done % options.every == 0 or done == options.steps or stop.is_file()):
                save(options.checkpoints, model=model, loader=loader)
    return losses


def main(arguments: list[str] | None = None) -> list[float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a folder or a hub's name; a tiny random model without it")
    parser.add_argument("--mode", choices=("local", "threads", "ray"), default="local")
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
