"""Weight sync against a raw Gloo broadcast, and against gather to rank 0 and broadcast, in one run.

    python benchmarks/bench_weights.py [--quick] [--transport auto,gloo] [--device cpu] [--json FILE]

With `--device cuda` the ranks share the GPUs, and the broadcasts use NCCL; with a single GPU, where NCCL has no second
rank, the sync is compared with a plain copy on that GPU. Each ratio is of two medians from the same run, in turns.
Absolute times on a shared machine mean little.

Each case is measured twice: into plain weights, and into `ReplaceableWeights`, whose memory a sync replaces. The values
of the source change before each sync, as after a step of training.

Between processes of one host (transport auto, replicas on CPUs) a row has a second ratio, `of_memcpy`: against all
target processes at once, each of which copies the same bytes from memory that the source process shares into its own
tensors, in one call of torch. That is one pass over the memory. A sync into plain weights has more: the source copies
into shared memory, and each target puts its old values aside before it copies the new ones.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import pickle
import statistics
import time
from datetime import timedelta
from itertools import product
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from twinkle_ray.weights import ReplaceableWeights, Shard, WeightSync

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_ray.weights.shards.shard import Weights

LIMIT_SECONDS = 300.0
_cuda: Any = torch.cuda  # parts of which have no types


class Model:
    """One rank's part of `count` parameters of `rows` x `columns` floats: a share of the rows, or all of them."""

    def __init__(
        self, device: str, rank: int, parts: int, replaceable: bool, count: int, rows: int, columns: int, fill: float
    ) -> None:
        self.tensors: dict[str, Tensor | Shard] = {}
        self.replaceable = replaceable
        size = rows // parts
        for i in range(count):
            block = torch.nn.Parameter(torch.full((size, columns), fill + i, device=device), requires_grad=False)
            whole = parts == 1
            self.tensors[f"t{i}"] = block if whole else Shard(block, (rows, columns), (rank * size, 0))

    def weights(self) -> Weights:
        return ReplaceableWeights(self.tensors) if self.replaceable else self.tensors

    def blocks(self) -> list[Tensor]:
        return [value.tensor if isinstance(value, Shard) else value for value in self.tensors.values()]


class PipeWorkers:
    """Worker processes that take calls over pipes."""

    polled = True

    def __init__(
        self, name: str, arguments: Sequence[tuple[Any, ...]], first: int, world: int, port: int, on_gpus: bool
    ) -> None:
        self.name, self.size = name, len(arguments)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed.tensor", "twinkle_ray.weights"])
        self.processes, self.pipes = [], []
        for rank, argument in enumerate(arguments):
            ours, theirs = context.Pipe()
            given = (theirs, first + rank, world, port, on_gpus, argument)
            process = context.Process(target=serve, args=given, daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(ours)

    def start(self, function: Callable[..., object], arguments: Sequence[tuple[object, ...]]) -> PendingCall:
        for pipe, argument in zip(self.pipes, arguments, strict=True):
            pipe.send_bytes(pickle.dumps((function, argument)))
        return PendingCall(self.pipes)

    def run(self, function: Callable[..., object], *arguments: object) -> list[Any]:
        return self.start(function, [arguments] * self.size).results(LIMIT_SECONDS)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.join(10)


class PendingCall:
    def __init__(self, pipes: Sequence[Connection]) -> None:
        self.pipes, self.values = pipes, dict[int, Any]()
        self.error: Any = None

    def done(self) -> bool:
        left = [pipe for i, pipe in enumerate(self.pipes) if i not in self.values]
        for pipe in wait(left, 0.0) if left else []:
            assert isinstance(pipe, Connection)
            good, value = pipe.recv()
            self.values[list(self.pipes).index(pipe)] = value
            self.error = self.error or (None if good else value)
        return len(self.values) == len(self.pipes)

    def failed(self) -> bool:
        return self.error is not None

    def results(self, timeout: float | None = None) -> list[Any]:
        until = time.monotonic() + (LIMIT_SECONDS if timeout is None else timeout)
        while not self.done() and time.monotonic() < until:
            time.sleep(0.0005)
        if self.error is not None:
            raise self.error
        return [self.values[i] for i in range(len(self.pipes))]


def serve(pipe: Connection, rank: int, world: int, port: int, on_gpus: bool, arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=60))
    backend = "cpu:gloo,cuda:nccl" if on_gpus and torch.cuda.device_count() >= world else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=timedelta(seconds=120))
    device = "cpu"
    if on_gpus:
        device = f"cuda:{rank % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    model = Model(device, *arguments)
    while True:
        function, values = pickle.loads(pipe.recv_bytes())
        try:
            pipe.send((True, function(model, *values)))
        except Exception as error:
            pipe.send((False, error))


def raw_broadcast(model: Model, buffers: list[Tensor]) -> float:
    """Broadcast all bytes from rank 0 in one call: the limit of the network."""
    if not buffers:
        buffers = KEPT.setdefault("flat", [torch.cat([block.flatten() for block in model.blocks()])])
    _meet()
    began = time.perf_counter()
    dist.broadcast(buffers[0], 0)
    _done()
    return time.perf_counter() - began


def plain_copy(model: Model, buffers: list[Tensor]) -> float:
    """Copy all bytes on the same device."""
    if "copy" not in KEPT:
        flat = torch.cat([block.flatten() for block in model.blocks()])
        KEPT["copy"] = [flat, torch.empty_like(flat)]
    _meet()
    began = time.perf_counter()
    KEPT["copy"][1].copy_(KEPT["copy"][0])
    _done()
    return time.perf_counter() - began


def share(model: Model) -> tuple[int, int, int]:
    """Copy all bytes into memory that other processes can map; returns process, descriptor and size."""
    size = sum(block.nbytes for block in model.blocks())
    fd = os.memfd_create("bench")
    os.ftruncate(fd, size)
    flat = KEPT["shared"] = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.float32)
    flat.copy_(torch.cat([block.flatten() for block in model.blocks()]))
    return os.getpid(), fd, size


def memory_copy(model: Model, shared: tuple[int, int, int], copies: bool) -> float:
    """Copy all bytes from shared memory into this process's tensors, if it is a target; all targets at once."""
    process, descriptor, size = shared
    if copies and "mapped" not in KEPT:
        fd = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR)
        flat = torch.frombuffer(mmap.mmap(fd, size), dtype=torch.float32)
        os.close(fd)
        blocks = model.blocks()
        parts = torch.split(flat, [block.numel() for block in blocks])
        KEPT["mapped"] = [part.view(block.shape) for part, block in zip(parts, blocks, strict=True)]
        KEPT["own"] = [torch.zeros_like(block) for block in blocks]
    _meet()
    began = time.perf_counter()
    if copies:
        torch._foreach_copy_(KEPT["own"], KEPT["mapped"])
    return time.perf_counter() - began


def _meet() -> None:
    _done()
    dist.all_reduce(torch.zeros(1))  # over Gloo, on every device


def _done() -> None:
    if _cuda.is_initialized():
        torch.cuda.synchronize()


KEPT: dict[str, Any] = {}


def gather_and_broadcast(model: Model, sources: int, rows: int) -> float:
    """Gather each tensor on rank 0, broadcast it, and keep this rank's part, as most frameworks do."""
    rank = dist.get_rank()
    group = GROUPS.setdefault(sources, dist.new_group(list(range(sources))) if sources not in GROUPS else None)
    _meet()
    began = time.perf_counter()
    for value in model.tensors.values():
        block = value.tensor if isinstance(value, Shard) else value
        whole = torch.empty(rows, block.shape[1], device=block.device)
        if rank < sources:
            parts = list(whole.chunk(sources)) if rank == 0 else None
            dist.gather(block, parts, group=group)
        dist.broadcast(whole, 0)
        if rank >= sources:
            assert isinstance(value, Shard)
            block.copy_(whole[value.offset[0] : value.offset[0] + block.shape[0]])
    _done()
    return time.perf_counter() - began


GROUPS: dict[int, Any] = {}


def held_mib(model: Model) -> float:
    if _cuda.is_initialized():
        return torch.cuda.memory_allocated() / 2**20
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def change(model: Model, by: float) -> None:
    """Add to every value, as a step of training would."""
    torch._foreach_add_(model.blocks(), by)


def sums(model: Model) -> list[float]:
    """One number of each tensor, which has read all of its values."""
    return [float(block.sum(dtype=torch.float64)) for block in model.blocks()]


def measure(
    sources: int,
    targets: int,
    replicated: bool,
    replaceable: bool,
    count: int,
    rows: int,
    columns: int,
    transport: Any,
    rounds: int,
    on_gpus: bool,
) -> dict[str, Any]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    world = sources + targets
    model = (count, rows, columns)
    near = on_gpus and torch.cuda.device_count() < world
    given = [(r, sources, False, *model, 1.0) for r in range(sources)]
    source = PipeWorkers("trainer", given, 0, world, store.port, on_gpus)
    parts = 1 if replicated else targets
    target = PipeWorkers(
        "sampler", [(r, parts, replaceable, *model, 0.0) for r in range(targets)], sources, world, store.port, on_gpus
    )
    try:
        before = [*source.run(held_mib), *target.run(held_mib)]
        sync = WeightSync(source, target, transport=transport, timeout=LIMIT_SECONDS)
        began = time.perf_counter()
        sync()
        first = time.perf_counter() - began
        source.run(change, 1.0)
        sync()  # a target whose memory is replaced has both of its memories now
        after = [*source.run(held_mib), *target.run(held_mib)]
        ours, theirs, copied = [], [], []
        shared = source.run(share)[0] if transport == "auto" and replicated and not on_gpus else None
        for _ in range(rounds):
            source.run(change, 1.0)
            began = time.perf_counter()
            sync()
            ours.append(time.perf_counter() - began)
            both = []
            for workers in (source, target):
                function = plain_copy if near else raw_broadcast if replicated else gather_and_broadcast
                arguments: tuple[Any, ...] = ([],) if replicated else (sources, rows)
                both.append(workers.start(function, [arguments] * workers.size))
            theirs.append(max(seconds for pending in both for seconds in pending.results(LIMIT_SECONDS)))
            if shared is not None:
                both = [
                    source.start(memory_copy, [(shared, False)]),
                    target.start(memory_copy, [(shared, True)] * targets),
                ]
                copied.append(max(seconds for pending in both for seconds in pending.results(LIMIT_SECONDS)))
        if replicated:
            assert target.run(sums) == source.run(sums) * targets
        payload = count * rows * columns * 4
        assert sync.plan is not None
        memcpy = statistics.median(copied) if copied else None
        return {
            "layout": f"{sources} -> {targets}" + (" replicas" if replicated else ""),
            "target": "replaceable" if replaceable else "plain",
            "tensors": f"{count} x {rows * columns * 4 / 1e6:.3g} MB",
            "transport": transport,
            "against": "plain copy" if near else "raw broadcast" if replicated else "gather + broadcast",
            "ours_ms": round(statistics.median(ours) * 1e3, 1),
            "theirs_ms": round(statistics.median(theirs) * 1e3, 1),
            "times_faster": round(statistics.median(theirs) / statistics.median(ours), 2),
            "memcpy_ms": None if memcpy is None else round(memcpy * 1e3, 1),
            "of_memcpy": None if memcpy is None else round(memcpy / statistics.median(ours), 2),
            "first_ms": round(first * 1e3, 1),
            "payload_mb": round(payload / 1e6, 1),
            "added_mib_per_source": round(max(b - a for a, b in zip(before[:sources], after[:sources], strict=True))),
            "added_mib_per_target": round(max(b - a for a, b in zip(before[sources:], after[sources:], strict=True))),
        }
    finally:
        source.end()
        target.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="three rounds, small worlds only")
    parser.add_argument("--transport", help="comma separated; auto,gloo on CPUs, auto on GPUs")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--replicas", action="store_true", help="1 -> 2 replicas alone")
    parser.add_argument("--json", help="write the figures here")
    options = parser.parse_args()
    rounds = 3 if options.quick else 7
    large, small = (64, 1024, 1538), (2000, 128, 128)
    rows = []
    on_gpus = options.device == "cuda"
    cases = [(1, 2, True, large), (2, 2, False, large), (2, 2, False, small)]
    if not options.quick:
        cases += [(1, 2, True, small), (4, 4, False, large), (4, 4, False, small)]
    if options.replicas:
        cases = [(1, 2, True, large), (1, 2, True, small)]
    if on_gpus:
        gpus = torch.cuda.device_count()
        cases = [case for case in cases if case[0] + case[1] <= gpus]
        cases = cases or [(1, 1, True, large), (1, 1, True, small)]
    for transport in (options.transport or ("auto" if on_gpus else "auto,gloo")).split(","):
        for (sources, targets, replicated, tensors), replaceable in product(cases, (False, True)):
            row = measure(sources, targets, replicated, replaceable, *tensors, transport, rounds, on_gpus)
            rows.append(row)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
