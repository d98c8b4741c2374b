"""Host memory of models: of loading on ranks that each keep their part, and of a step at a large vocabulary.

    python benchmarks/bench_models.py [--gigabytes 2] [--ranks 4] [--whole]

Anonymous memory of a process (RssAnon): its peak above that before. It takes about the size of the model on disk, and
half of it more in memory. `--whole` also makes all logits at once.
"""

import argparse
import multiprocessing
import os
import socket
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, Qwen3Config

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import Rollouts, TransformersModel
from twinkle_engines.models import forward

MB = 2**20


def anonymous() -> int:
    """Bytes of this process's own memory."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


class Peak:
    """The most memory within a block, above that before it."""

    def __enter__(self) -> "Peak":
        self._before, self.most, self._ended = anonymous(), 0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._ended.wait(0.005):
            self.most = max(self.most, anonymous() - self._before)

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def config_of(gigabytes: float) -> Qwen3Config:
    """A config whose parameters take so much in float32."""
    width, vocabulary = 1024, 32_000
    layer = 4 * width * width + 3 * width * 4 * width
    layers = max(1, round((gigabytes * 2**30 / 4 - vocabulary * width) / layer))
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        head_dim=64,
        tie_word_embeddings=True,
    )


def load(rank: int, ranks: int, port: int, name: str, source: Any, lines: Any) -> None:
    """Build the model on one of the ranks, and tell its peak."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    mesh = DeviceMesh.from_sizes(fsdp_size=ranks, device_type="cpu")
    with twinkle.session("local", groups=[DeviceGroup("trainer", ranks, "CPU")]):
        began = time.perf_counter()
        with Peak() as peak:
            model = TransformersModel(source, optimizer=None, device_mesh=mesh, remote_group="trainer")
        parts = [one.to_local() if isinstance(one, DTensor) else one for one in model.weights().values()]
        own = sum(one.untyped_storage().nbytes() for one in {one.data_ptr(): one for one in parts}.values())
        seconds = time.perf_counter() - began
    lines.put(f"{name}: rank {rank}: peak {peak.most / MB:.0f} MB, its part {own / MB:.0f} MB, {seconds:.1f} s")
    lines.close()
    lines.join_thread()
    os._exit(0)


def on_ranks(ranks: int, name: str, source: Any) -> None:
    """Load a model on forked ranks, and print what they tell."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    fork = multiprocessing.get_context("fork")
    lines = fork.Queue()
    processes = [fork.Process(target=load, args=(i, ranks, port, name, source, lines)) for i in range(ranks)]
    for one in processes:
        one.start()
    for line in sorted(lines.get(timeout=900) for _ in processes):
        print(line, flush=True)
    for one in processes:
        one.join()


def step(vocabulary: int, tokens: int, whole: bool) -> None:
    """The peak of a step on one sequence."""
    forward.CHUNK = vocabulary * tokens if whole else 2**24
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=64,
        tie_word_embeddings=True,
    )
    twinkle.initialize("local")
    model = TransformersModel(config, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    model.forward_backward(Rollouts([[1, 2, 3]]))
    ids = torch.randint(vocabulary, (tokens,), generator=torch.Generator().manual_seed(0))
    began = time.perf_counter()
    with Peak() as peak:
        model.forward_backward(Rollouts([ids]))
    logits = vocabulary * tokens * 4 / MB
    how = "all logits at once" if whole else "in chunks"
    seconds = time.perf_counter() - began
    print(
        f"step, {vocabulary} x {tokens}, {how}: peak {peak.most / MB:.0f} MB (logits {logits:.0f} MB), {seconds:.1f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--whole", action="store_true")
    options = parser.parse_args()
    config = config_of(options.gigabytes)
    on_ranks(options.ranks, "a config", config)
    with TemporaryDirectory() as folder:
        maker = multiprocessing.get_context("fork").Process(target=write, args=(config, folder))
        maker.start()
        maker.join()
        on_ranks(options.ranks, "a folder", folder)
    step(150_000, 4096, False)
    if options.whole:
        step(150_000, 4096, True)


def write(config: Qwen3Config, folder: str) -> None:
    """Write a model of a config."""
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)


if __name__ == "__main__":
    main()
