"""A small GPT in plain torch, and the same GPT split over a mesh by torch's own parts."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    import twinkle

Rows = Mapping[str, Tensor]
Loss = Callable[[Tensor, Rows], Tensor]


@dataclass(frozen=True)
class Size:
    """The size of a model: words of its vocabulary, words of its context, and what lies between."""

    vocabulary: int = 1024
    context: int = 32
    width: int = 64
    heads: int = 4
    blocks: int = 4


class Block(nn.Module):
    """Attention and a feed-forward layer, each on a residual path."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head_width = size.width // size.heads
        self.norm1, self.norm2 = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.q, self.k, self.v = (nn.Linear(size.width, size.width, bias=False) for _ in range(3))
        self.out = nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        # -1: a tensor-parallel rank holds heads / tp of the heads.
        q, k, v = (part(h).unflatten(-1, (-1, self.head_width)).transpose(1, 2) for part in (self.q, self.k, self.v))
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        forward: Tensor = self.down(F.gelu(self.up(self.norm2(x))))
        return x + forward


class TinyGPT(nn.Module):
    """Words in, logits of the next words out; or one pipeline stage of that, its parameters named the same."""

    def __init__(self, size: Size, seed: int, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        self.first, self.last = stage == 0, stage == stages - 1
        if self.first:
            self.words = nn.Embedding(size.vocabulary, size.width)
            self.positions = nn.Embedding(size.context, size.width)
        mine = range(size.blocks * stage // stages, size.blocks * (stage + 1) // stages)
        self.blocks = nn.ModuleDict({str(i): Block(size) for i in mine})
        if self.last:
            self.norm = nn.LayerNorm(size.width)
            self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.reset(seed)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Draw each matrix from a seed of its own, so that the first weights do not depend on the layout."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
                embedding = name.startswith(("words", "positions"))
                scale = 0.3 if embedding else 0.5 * parameter.shape[1] ** -0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.words(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if self.last else x


@torch.no_grad()
def write_on(model: nn.Module, words: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Append one word per column of `draws`, numbers in [0, 1) that choose it; also the words' log-probabilities."""
    chosen = []
    for draw in draws.unbind(1):
        logprobs = F.log_softmax(model(words)[:, -1], dim=-1)
        upto = logprobs.exp().cumsum(dim=-1)
        # The last sum may be just below 1, and the draw above it.
        word = torch.searchsorted(upto, draw[:, None].contiguous()).clamp(max=logprobs.shape[1] - 1)
        chosen.append(logprobs.gather(1, word))
        words = torch.cat([words, word], dim=1)
    return words, torch.cat(chosen, dim=1)


class SplitGPT:
    """A TinyGPT over a mesh with the dims pp, dp and tp, where a dim of size 1 means whole.

    Args:
        size: Size of the whole model.
        seed: Seed of its first weights.
        mesh: The mesh; every rank of it builds its part.
        micro_batches: Parts of a batch that follow one another through the stages.
    """

    def __init__(self, size: Size, seed: int, mesh: DeviceMesh, micro_batches: int) -> None:
        self.size, self.mesh, self.micro_batches = size, mesh, micro_batches
        self.stage, self.stages = mesh.get_local_rank("pp"), mesh["pp"].size()
        self.device = torch.device(mesh.device_type)
        self.model = TinyGPT(size, seed, self.stage, self.stages).to(self.device)
        columns = {f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
        rows = {f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")}
        parallelize_module(self.model, mesh["tp"], {**columns, **rows})
        # A stage runs several micro-batches: keep its parameters whole from the first to the last.
        for part in (*self.model.blocks.values(), self.model):
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
        self._schedules: dict[torch.Size, ScheduleGPipe] = {}
        self._loss: Callable[[Tensor, Tensor], Tensor]

    def backward(self, words: Tensor, rows: Rows, loss: Loss) -> float | None:
        """Add the gradients of this data rank's mean loss, averaged over the data ranks.

        Args:
            words: Ids of the words, one row for each text.
            rows: What the loss needs beside the logits, one row for each text.
            loss: The mean loss of some of the texts, from their logits and their rows.

        Returns:
            This data rank's loss on the last stage, None on the others.
        """
        if not len(words) or len(words) % self.micro_batches:
            raise ValueError(
                f"{len(words)} rows on one data rank do not make {self.micro_batches} equal micro-batches; "
                f"a multiple of {self.micro_batches} would"
            )
        columns = {name: column.to(self.device) for name, column in rows.items()}
        self._loss = lambda logits, index: loss(logits, {name: column[index] for name, column in columns.items()})
        schedule = self._schedules.get(words.shape) or self._schedule(words)
        inputs = (words.to(self.device),) if self.model.first else ()
        index = torch.arange(len(words), device=self.device) if self.model.last else None
        losses: list[Tensor] = []
        schedule.step(*inputs, target=index, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().item() if losses else None

    def _schedule(self, words: Tensor) -> ScheduleGPipe:
        """The way of one micro-batch: shapes are told beforehand, so that the stages need not ask each other."""
        shape = (len(words) // self.micro_batches, words.shape[1])
        hidden = torch.empty(*shape, self.size.width, device=self.device, requires_grad=True)
        logits = torch.empty(*shape, self.size.vocabulary, device=self.device)
        stage = PipelineStage(
            self.model,
            self.stage,
            self.stages,
            self.device,
            input_args=torch.empty(shape, dtype=words.dtype, device=self.device) if self.model.first else hidden,
            output_args=logits if self.model.last else hidden,
            group=self.mesh.get_group("pp"),
        )
        schedule = ScheduleGPipe(stage, self.micro_batches, loss_fn=lambda logits, index: self._loss(logits, index))
        return self._schedules.setdefault(words.shape, schedule)


def own_device(mesh: twinkle.DeviceMesh) -> torch.device:
    """This worker's device; one thread where it is the CPU, which a model of this size does not fill."""
    if mesh.device_type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(1)
    return torch.device(mesh.device_type)


def torch_mesh(mesh: twinkle.DeviceMesh) -> DeviceMesh:
    """Torch's form of a mesh, its groups among all workers of the component."""
    if not dist.is_initialized():
        backend = "nccl" if own_device(mesh).type == "cuda" else "gloo"
        if mesh.world_size > 1:
            dist.init_process_group(backend)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without a stub
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
    return mesh.to_torch()
