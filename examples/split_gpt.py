"""The small GPT over a mesh, with torch's tensor parallelism, sharded data parallelism and pipeline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from tiny_gpt import Size, TinyGPT, own_device
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    import twinkle

Rows = Mapping[str, Tensor]
Loss = Callable[[Tensor, Rows], Tensor]


class SplitGPT:
    """A TinyGPT over a mesh with the dims pp, dp and tp; a dim of size 1 does not split it.

    Args:
        size: Size of the whole model.
        seed: Seed of its first weights.
        mesh: The mesh; every rank builds its part of the model.
        micro_batches: Parts of a batch, which the stages run one after the other.
    """

    def __init__(self, size: Size, seed: int, mesh: DeviceMesh, micro_batches: int) -> None:
        self.size, self.mesh, self.micro_batches = size, mesh, micro_batches
        self.stage, self.stages = mesh.get_local_rank("pp"), mesh["pp"].size()
        self.device = torch.device(mesh.device_type)
        self.model = TinyGPT(size, seed, self.stage, self.stages).to(self.device)
        columns = {f"blocks.*.{name}": ColwiseParallel() for name in ("q", "k", "v", "up")}
        rows = {f"blocks.*.{name}": RowwiseParallel() for name in ("out", "down")}
        parallelize_module(self.model, mesh["tp"], {**columns, **rows})
        # Keep the parameters gathered over all micro-batches of a stage.
        for part in (*self.model.blocks.values(), self.model):
            fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
        self._schedules: dict[torch.Size, ScheduleGPipe] = {}
        self._loss: Callable[[Tensor, Tensor], Tensor]

    def backward(self, words: Tensor, rows: Rows, loss: Loss) -> float | None:
        """Add the gradients of this data rank's mean loss, averaged over the data ranks.

        Args:
            words: Ids of the words, one row for each text.
            rows: Inputs of the loss next to the logits, one row for each text.
            loss: Computes the mean loss of some texts from their logits and rows.

        Returns:
            This data rank's loss on the last stage, None on the others.
        """
        if not len(words) or len(words) % self.micro_batches:
            raise ValueError(
                f"{len(words)} rows on one data rank do not make {self.micro_batches} equal micro-batches; "
                f"use a multiple of {self.micro_batches}"
            )
        columns = {name: column.to(self.device) for name, column in rows.items()}
        self._loss = lambda logits, index: loss(logits, {name: column[index] for name, column in columns.items()})
        schedule = self._schedules.get(words.shape) or self._schedule(words)
        inputs = (words.to(self.device),) if self.model.first else ()
        index = torch.arange(len(words), device=self.device) if self.model.last else None
        losses: list[Tensor] = []
        schedule.step(*inputs, target=index, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().item() if losses else None

    def parameter_groups(self) -> list[dict[str, list[nn.Parameter]]]:
        """The parameters by torch mesh, as groups of an optimizer; parameters of norms have no tp dim."""
        groups: dict[DeviceMesh, list[nn.Parameter]] = {}
        for parameter in self.model.parameters():
            assert isinstance(parameter, DTensor)
            groups.setdefault(parameter.device_mesh, []).append(parameter)
        return [{"params": group} for group in groups.values()]

    def _schedule(self, words: Tensor) -> ScheduleGPipe:
        """The schedule for batches of a shape; because the shapes are given, the stages do not exchange them."""
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


def torch_mesh(mesh: twinkle.DeviceMesh) -> DeviceMesh:
    """Torch's mesh for a mesh; starts the process group of the component's workers."""
    if not dist.is_initialized():
        backend = "nccl" if own_device(mesh).type == "cuda" else "gloo"
        if mesh.world_size > 1:
            dist.init_process_group(backend)
        else:
            store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without a stub
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
    return mesh.to_torch()
