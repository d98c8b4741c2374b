"""A small GPT in plain torch, whole or one pipeline stage of it."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn

if TYPE_CHECKING:
    from twinkle import DeviceMesh


@dataclass(frozen=True)
class Size:
    """The size of a model: words of its vocabulary and of its context, width, heads and blocks."""

    vocabulary: int = 1024
    context: int = 32
    width: int = 64
    heads: int = 4
    blocks: int = 2


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
    """Map words to logits of the next words, or be one pipeline stage of that, with the same parameter names."""

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
        """Draw each matrix from its own seed, so that the first weights do not depend on the layout."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
                scale = {"words.weight": 0.3, "positions.weight": 0.02}.get(name, 0.5 * parameter.shape[1] ** -0.5)
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))
            elif name.endswith("bias"):
                parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        x = self.hidden(x)
        return self.logits(x) if self.last else x

    def hidden(self, x: Tensor) -> Tensor:
        if self.first:
            x = self.words(x) + self.positions.weight[: x.shape[1]]
        for block in self.blocks.values():
            x = block(x)
        return x

    def logits(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(x))
        return logits


@torch.no_grad()
def write_on(model: TinyGPT, words: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
    """Append one word for each column of `draws`, in [0, 1); returns all words and the log-probabilities of the new."""
    chosen = []
    for draw in draws.unbind(1):
        logprobs = F.log_softmax(model.logits(model.hidden(words)[:, -1]), dim=-1)
        upto = logprobs.exp().cumsum(dim=-1)
        # Rounding may leave the last sum below 1, and the draw above it.
        word = torch.searchsorted(upto, draw[:, None].contiguous()).clamp(max=logprobs.shape[1] - 1)
        chosen.append(logprobs.gather(1, word))
        words = torch.cat([words, word], dim=1)
    return words, torch.cat(chosen, dim=1)


def own_device(mesh: DeviceMesh) -> torch.device:
    """This worker's device; on a CPU, one thread is enough for a model of this size."""
    if mesh.device_type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        return torch.device("cuda", torch.cuda.current_device())
    torch.set_num_threads(1)
    return torch.device(mesh.device_type)
