"""The probes of `twinkle doctor --gpu`: each runs in a process of its own, and prints what it found as lines of JSON.

    python -m twinkle.cli.device_probes NAME DEVICE COUNT

DEVICE is "cuda", or "cpu" to run the same paths on the host: what fails there is no fault of a GPU.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import TYPE_CHECKING, Any

import twinkle
from twinkle import DeviceGroup, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable


_MARK = "twinkle-probe "
_BYTES = 64 << 20  # of the hand-over


@remote_class()
class Probe:
    """One rank of a group on the devices."""

    def __init__(self, device: str) -> None:
        self._kind = device

    @remote_function(dispatch="all")
    def look(self) -> dict[str, Any]:
        """Return the devices that this process sees, and the sum of a tensor on its device."""
        import torch

        if self._kind == "cuda":
            index = int(os.environ["LOCAL_RANK"])
            torch.cuda.set_device(index)
            names = [str(torch.cuda.get_device_properties(index).uuid)]
            count = torch.cuda.device_count()
        else:
            names, count = [str(os.getpid())], 1
        total = float(torch.ones(1024, device=self._kind).sum())
        return {"names": names, "count": count, "sum": total, "threads": torch.get_num_threads()}

    @remote_function(dispatch="all")
    def reduce(self) -> tuple[float, float, float]:
        """Sums over all ranks: of a device's tensor, and of a host's; and the GiB a second of the former."""
        import time

        import torch

        from twinkle_ray import MeshCollective

        with MeshCollective.from_env(device_type=self._kind, timeout=60.0) as whole:
            small, large = torch.ones(4, device=self._kind), torch.zeros(_BYTES // 4, device=self._kind)
            on_host = torch.ones(4)
            whole.all_reduce(small)
            whole.all_reduce(on_host)
            whole.all_reduce(large)
            _wait(self._kind)
            began = time.perf_counter()
            whole.all_reduce(large)
            _wait(self._kind)
            return float(small[0]), float(on_host[0]), _BYTES / 2**30 / (time.perf_counter() - began)

    @remote_function(dispatch="all")
    def train(self) -> tuple[float, float]:
        """The losses before and after steps of a small network that FSDP2 divides over all ranks."""
        import torch
        from torch.distributed.fsdp import fully_shard

        from twinkle_ray import MeshCollective

        with MeshCollective.from_env(device_type=self._kind, timeout=60.0) as whole:
            torch.manual_seed(0)
            net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(self._kind)
            fully_shard(net, mesh=whole.dp_mesh["dp_shard"])
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            given, losses = torch.randn(16, 64).to(self._kind), []
            for _ in range(5):
                loss = net(given).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            return losses[0], losses[-1]


def probe_group(device: str, count: int) -> None:
    """A group on the devices: what its ranks see, a reduction over them, a step of FSDP2."""
    kind = "GPU" if device == "cuda" else "CPU"
    groups = [DeviceGroup("doctor", count, kind)]
    make: Any = Probe
    with twinkle.session("ray", groups=groups, lazy_collect=False, start_timeout=100.0):
        member = make(device, remote_group="doctor")
        well = _report("devices", lambda: _seen(member.look()))
        backend = "NCCL and Gloo" if device == "cuda" else "Gloo"
        if well:
            well = _report("all-reduce", lambda: _reduced(member.reduce(), count, backend))
        if well:
            _report("FSDP2", lambda: _trained(member.train(), count))


def _seen(rows: list[dict[str, Any]]) -> str:
    names = [name for row in rows for name in row["names"]]
    if len(set(names)) < len(names):
        raise RuntimeError(f"two ranks have one device: {names}")
    if any(row["sum"] != 1024.0 for row in rows):
        raise RuntimeError(f"a sum of 1,024 ones is {[row['sum'] for row in rows]}")
    return f"{len(rows)} ranks, each with a device of its own, {rows[0]['threads']} threads each"


def _reduced(rows: list[tuple[float, float, float]], count: int, backend: str) -> str:
    if any(row[:2] != (count, count) for row in rows):
        raise RuntimeError(f"a sum of ones over {count} ranks is {[row[:2] for row in rows]}")
    alone = "; one rank: several devices were not tried" if count == 1 else ""
    return f"{count} ranks over {backend}, {min(row[2] for row in rows):.1f} GiB/s{alone}"


def _trained(rows: list[tuple[float, float]], count: int) -> str:
    first, last = rows[0]
    if any(row != rows[0] for row in rows) or not last < first:
        raise RuntimeError(f"the losses before and after 5 steps are {rows}")
    return f"{count} ranks, the loss falls from {first:.4f} to {last:.4f}"


def probe_hand_over(device: str, count: int) -> None:
    """Memory of one process that another opens: CUDA IPC on one device, a memory file on the host."""
    _report("hand-over", lambda: _handed_over(device))


def _handed_over(device: str) -> str:
    import torch.multiprocessing

    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=_give, args=(there, device), daemon=True)
    child.start()
    try:
        if not here.poll(90):
            raise RuntimeError("the other process has not offered its memory within 90 s")
        handle = here.recv()
        if isinstance(handle, BaseException):
            raise handle
        store, bucket = _store(device)
        (block,) = store.get(bucket, handle)
        total = float(block[:1024].float().sum())
        kind = type(handle).__name__
    finally:
        here.send(None)
        child.join(10)
    if total != 3 * 1024.0:
        raise RuntimeError(f"1,024 threes of the other process add up to {total}")
    if device == "cuda" and kind != "DeviceMemory":
        raise RuntimeError(
            "CUDA IPC is refused by torch's allocator; weights go over the host (PYTORCH_CUDA_ALLOC_CONF with "
            "expandable_segments:True does that)"
        )
    return "a process reads the device memory of another one" if device == "cuda" else "by a memory file"


def _give(pipe: Any, device: str) -> None:
    import torch

    try:
        store, bucket = _store(device)
        block = torch.full((bucket.nbytes,), 3, dtype=torch.uint8, device=device)
        pipe.send(store.put([(bucket, [block])], copy=False)[0])
    except Exception as error:
        pipe.send(RuntimeError(f"{type(error).__name__}: {error}"))
    pipe.recv()


def _store(device: str) -> tuple[Any, Any]:
    from twinkle_ray.weights.planning.box_plan import SizedBox
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.shards.box import Box
    from twinkle_ray.weights.transport import block_store_for

    piece = SizedBox(Box.whole((_BYTES,)), _BYTES)
    bucket = Bucket(0, 0, (0,), "host", (0,), ("uint8",), (piece,), _BYTES)
    route: Any = "cuda_ipc" if device == "cuda" else "shared"
    return block_store_for(route, "doctor", [bucket], private=False), bucket


def probe_vllm(device: str, count: int) -> None:
    """An engine of vLLM that starts, and takes a trainer's weights."""
    import torch
    from transformers import Qwen2Config

    from twinkle import WeightSync
    from twinkle.engines import SamplingParams, TransformersModel, VLLMSampler, mismatch

    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    dtype = "bfloat16" if device == "cuda" else "float32"
    config = Qwen2Config(
        vocab_size=256, hidden_size=128, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256,
    )  # fmt: skip
    config.dtype = getattr(torch, dtype)
    params = SamplingParams(max_new_tokens=8, seed=1)
    made: dict[str, Any] = {}

    def start() -> str:
        options = {"max_model_len": 256, "enforce_eager": True, "dtype": dtype}
        options |= {"gpu_memory_utilization": 0.3} if device == "cuda" else {}
        make: Any = VLLMSampler
        made["sampler"] = make(config, **options)
        answers = made["sampler"].sample([[1, 2, 3]], params)
        return f"wrote {len(answers.ids[0]) - 3} tokens"

    def sync() -> str:
        make: Any = TransformersModel
        model = make(config, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), dtype=dtype)
        WeightSync(model, made["sampler"])()
        rollouts = made["sampler"].sample([[1, 2, 3], [4, 5]], params)
        factor = mismatch(rollouts, model.logprobs(rollouts))["worst"]
        limit = 1.001 if dtype == "float32" else 1.1
        if not factor < limit:
            raise RuntimeError(f"after a sync the engines' probabilities differ by a factor of {factor:.3f}")
        return f"the engines' probabilities agree (worst factor {factor:.4f})"

    with twinkle.session("local"):
        if _report("vLLM", start):
            _report("weights to vLLM", sync)


PROBES: dict[str, Callable[[str, int], object]] = {
    "group": probe_group,
    "hand-over": probe_hand_over,
    "vllm": probe_vllm,
}


def _report(what: str, check: Callable[[], str]) -> bool:
    """Print what a check found, or all of a probe ("whole"); returns whether it was well."""
    try:
        found, well = check(), True
    except Exception as error:
        traceback.print_exc()
        found, well = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}", False
    if what != "whole" or not well:
        print(f"\n{_MARK}{json.dumps({'what': what, 'found': found, 'well': well})}", flush=True)
    return well


def read_reports(output: str) -> list[dict[str, Any]]:
    """Return the checks in a probe's output: "what", "found" and "well" of each."""
    return [json.loads(line.removeprefix(_MARK)) for line in output.splitlines() if line.startswith(_MARK)]


def _wait(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    name, chosen, number = sys.argv[1:]
    _report("whole", lambda: str(PROBES[name](chosen, int(number))))
