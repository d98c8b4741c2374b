"""Tiny models, batches of ragged rows, and a plain loop that trains on one sequence at a time."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig

import twinkle
from twinkle.engines import Rollouts

if TYPE_CHECKING:
    from collections.abc import Sequence

VOCABULARY = 61
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
CONFIGS: dict[str, Any] = {
    "llama": LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=False),
    "qwen2-moe": Qwen2MoeConfig(**SIZES, **EXPERTS, shared_expert_intermediate_size=16, tie_word_embeddings=True),
    "qwen3-moe": Qwen3MoeConfig(**SIZES, **EXPERTS, tie_word_embeddings=False),
}
LORA = LoraConfig(r=4, target_modules=["q_proj", "o_proj", "down_proj", "lm_head"], init_lora_weights=False)

Batch = dict[str, torch.Tensor]


class Build:
    """Builds a model of one family with the same random weights everywhere."""

    def __init__(self, family: str, seed: int = 5) -> None:
        self.family, self.seed = family, seed

    def __call__(self) -> Any:
        with torch.random.fork_rng():
            torch.manual_seed(self.seed)
            model = AutoModelForCausalLM.from_config(deepcopy(CONFIGS[self.family]))  # a head of numbers unties it
            with torch.no_grad():  # biases and norms start alike, which would hide what is divided wrongly
                for parameter in model.parameters():
                    if parameter.dim() == 1:
                        parameter.add_(0.1 * torch.randn(parameter.shape))
        return model


def adapted(family: str) -> Any:
    """The model of a family with LORA's adapters."""
    with torch.random.fork_rng():
        torch.manual_seed(6)
        return get_peft_model(Build(family)(), LORA)


def sgd(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def adamw(parameters: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, eps=1e-3, weight_decay=0.1)


def halving(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)


def ragged(rows: int, seed: int, side: str = "right") -> Batch:
    """Rows of 2 to 12 tokens, padded, of which about two thirds count."""
    generator = torch.Generator().manual_seed(seed)
    width = 12
    ids = torch.randint(VOCABULARY, (rows, width), generator=generator)
    lengths = torch.randint(2, width + 1, (rows, 1), generator=generator)
    places = torch.arange(width)
    attended = places < lengths if side == "right" else places >= width - lengths
    counted = attended & (torch.rand(ids.shape, generator=generator) < 0.66)
    return {
        "input_ids": torch.where(attended, ids, 7),
        "attention_mask": attended.long(),
        "labels": torch.where(counted, ids, -100),
    }


def sequences(batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The ids of each row without padding, and which of them count."""
    columns = (batch["input_ids"], batch["attention_mask"].bool(), batch["labels"] != -100)
    return [(ids[there], counts[there]) for ids, there, counts in zip(*columns, strict=True)]


def logprobs_of(model: Any, batch: Any) -> list[torch.Tensor]:
    """The log-probabilities of each sequence, as `annotate` adds them."""
    rows = batch if isinstance(batch, Rollouts) else Rollouts([ids for ids, _ in sequences(batch)])
    found: Rollouts = twinkle.get(model.annotate(rows, "found"))
    return found.column("found")


def plain_logprobs(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Of one sequence without padding; 0 at the first token."""
    logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0, :-1].float(), dim=-1)
    return torch.cat([torch.zeros(1), logprobs.gather(1, ids[1:, None])[:, 0]])


class PlainLoop:
    """One process, one sequence at a time, and nothing of Twinkle."""

    def __init__(self, model: Any, optimizer: Any, schedule: Any = None, max_grad_norm: float | None = None) -> None:
        self.model = model
        self.optimizer = optimizer([one for one in model.parameters() if one.requires_grad])
        self.schedule = None if schedule is None else schedule(self.optimizer)
        self.max_grad_norm = max_grad_norm

    def train(self, batches: Sequence[Batch], normalize: str = "token") -> tuple[list[float], float, float]:
        """One step on several batches: the loss of each, the norm of the gradient, the rate."""
        totals, counts = [], []
        for batch in batches:
            values, count = [], 0
            for ids, counted in sequences(batch):
                counted = counted.clone()
                counted[0] = False
                if counted.any():
                    losses = -plain_logprobs(self.model, ids)[counted]
                    values.append(losses.sum() if normalize == "token" else losses.mean())
                    count += int(counted.sum()) if normalize == "token" else 1
            totals.append(torch.stack(values).sum())
            counts.append(count)
        (torch.stack(totals).sum() / sum(counts)).backward()  # type: ignore[no-untyped-call]  # torch's own
        limit = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        rate = self.optimizer.param_groups[0]["lr"]
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()
        self.optimizer.zero_grad()
        return [total.item() / count for total, count in zip(totals, counts, strict=True)], norm, rate
