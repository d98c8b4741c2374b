"""A step of training in one process: `TransformersModel` against a bare loop in torch, and TRL's SFTTrainer.

All sides have the same random weights, 16 sequences of 32 to 128 tokens, AdamW, clipping, and one thread. A step is a
forward and a backward pass of all of them, clipping, and the optimizer's step; the figure is the processor's time.
Half of the tokens count, or all of them, as the row says: the bare loops make logits at all tokens, as Transformers'
own loss does. Packs are compared with padded micro-batches of as many tokens.

The last row is the wall time of a step of two data ranks, over Ray, whose rows are divided by tokens, against rows in
their order.
"""

from __future__ import annotations

import importlib
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from rows import Row, cpu_seconds, main, seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCABULARY = 4_096
ROWS_AT_ONCE = 16
PACK = 1_024


def build() -> Any:
    """A small model: four layers of 128."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=2_048,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


def adamw(parameters: Any) -> Any:
    """The optimizer of all sides."""
    import torch

    return torch.optim.AdamW(parameters, lr=1e-4)


def lengths(kind: str) -> list[int]:
    """Tokens of each sequence."""
    import torch

    generator = torch.Generator().manual_seed(1)
    if kind == "even":
        return [64] * 2 * ROWS_AT_ONCE
    if kind == "lognormal":
        drawn = 64 * torch.randn(2 * ROWS_AT_ONCE, generator=generator).exp()
        found: list[int] = drawn.clamp(4, PACK).long().tolist()
        return found
    uniform: list[int] = torch.randint(32, 129, (ROWS_AT_ONCE,), generator=generator).tolist()
    return uniform


def columns(counted: float, sizes: list[int]) -> dict[str, Any]:
    """Padded columns, in which the last part of each sequence counts, with log-probabilities and advantages."""
    import torch

    generator = torch.Generator().manual_seed(2)
    shape = (len(sizes), max(sizes))
    places = torch.arange(shape[1])
    rows = torch.tensor(sizes)[:, None]
    there = places < rows
    ids = torch.randint(2, VOCABULARY, shape, generator=generator) * there
    labels = torch.where(there & (places >= (1 - counted) * rows), ids, -100)
    old = -8 + 0.01 * torch.randn(shape, generator=generator)
    advantages = (torch.arange(len(sizes)) % 2 - 0.5)[:, None].expand(shape)
    mask = there.long()
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "logprobs": old, "advantages": advantages}


@contextmanager
def ours(loss: str, counted: float) -> Iterator[Callable[[], float]]:
    """Our side: CPU seconds of a step."""
    import twinkle
    from twinkle import DeviceGroup
    from twinkle.engines import TransformersModel

    batch = columns(counted, lengths("uniform"))
    if loss == "cross_entropy":
        batch = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    with twinkle.session("local", groups=[DeviceGroup("trainer", 1, "CPU")]):
        model = TransformersModel(build, optimizer=adamw, max_grad_norm=1.0, remote_group="trainer")

        def step() -> None:
            model.forward_backward(batch, loss)["loss"]
            model.step()

        yield lambda: cpu_seconds(step)


@contextmanager
def bare(loss: str, counted: float) -> Iterator[Callable[[], float]]:
    """A loop in torch: CPU seconds of a step."""
    import torch

    model = build()
    optimizer = adamw(model.parameters())
    batch = columns(counted, lengths("uniform"))
    given = {name: batch[name] for name in ("input_ids", "attention_mask")}
    keep = (batch["labels"] != -100)[:, 1:].float()

    def grpo() -> Any:
        logits = model(**given, use_cache=False).logits[:, :-1].float()
        ids = batch["input_ids"][:, 1:]
        rows = [one.gather(-1, own[:, None])[:, 0] - one.logsumexp(-1) for one, own in zip(logits, ids, strict=True)]
        ratio = (torch.stack(rows) - batch["logprobs"][:, 1:]).exp()  # by row, as TRL does, for less memory
        advantages = batch["advantages"][:, 1:]
        values = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        return ((values * keep).sum(1) / keep.sum(1)).mean()

    def step() -> None:
        total = grpo() if loss == "grpo" else model(**given, labels=batch["labels"], use_cache=False).loss
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total.item()

    yield lambda: cpu_seconds(step)


@contextmanager
def trl() -> Iterator[Callable[[], float]]:
    """TRL's SFTTrainer on token ids and labels: CPU seconds of a step, of the last four of five."""
    import tempfile
    import time

    from datasets import Dataset
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, TrainerCallback

    library: Any = importlib.import_module("trl")  # of an environment of its own

    batch = columns(0.5, lengths("uniform"))
    rows: list[dict[str, Any]] = []
    for ids, labels, mask in zip(batch["input_ids"], batch["labels"], batch["attention_mask"], strict=True):
        size = int(mask.sum())
        rows.append({"input_ids": ids[:size].tolist(), "labels": labels[:size].tolist()})
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<unk>": 1}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<unk>")
    ends: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: Any, **options: Any) -> None:
            ends.append(time.process_time())

    with tempfile.TemporaryDirectory() as folder:
        options = library.SFTConfig(
            output_dir=folder, per_device_train_batch_size=ROWS_AT_ONCE, max_steps=5, learning_rate=1e-4, use_cpu=True,
            report_to=[], save_strategy="no", logging_strategy="no", max_grad_norm=1.0, bf16=False, disable_tqdm=True,
            gradient_checkpointing=False, dataset_kwargs={"skip_prepare_dataset": True},
            remove_unused_columns=False,
        )  # fmt: skip
        data = Dataset.from_list(rows * 5)
        trainer = library.SFTTrainer(
            build(), args=options, train_dataset=data, processing_class=tokenizer, callbacks=[Clock()]
        )

        def one_round() -> float:
            ends.clear()
            trainer.train()
            return (ends[-1] - ends[0]) / (len(ends) - 1)

        yield one_round


@contextmanager
def passes(kind: str, *, packed: bool) -> Iterator[Callable[[], float]]:
    """Our steps in packs, or in padded micro-batches of as many tokens: CPU seconds."""
    from twinkle.engines import Rollouts, TransformersModel

    sizes = lengths(kind)
    batch = columns(1.0, sizes)
    rollouts = Rollouts([ids[:size] for ids, size in zip(batch["input_ids"], sizes, strict=True)])
    parts = -(-sum(sizes) // PACK)
    options: dict[str, Any] = {"max_tokens": PACK} if packed else {"micro_batch_size": -(-len(sizes) // parts)}
    model = TransformersModel(build, optimizer=adamw, **options)

    def step() -> None:
        model.forward_backward(rollouts)
        model.step()

    yield lambda: cpu_seconds(step)


@contextmanager
def two_ranks(*, balance: bool) -> Iterator[Callable[[], float]]:
    """Our step on two data ranks: wall seconds."""
    import twinkle
    from twinkle import DeviceGroup, DeviceMesh
    from twinkle.engines import Rollouts, TransformersModel

    @twinkle.remote_class()
    class InOrder(TransformersModel):
        """A model whose ranks may get equally many rows, in their order."""

        @twinkle.remote_function("slice_dp", collect="first", split=("batch",), collective=True)
        def in_order(self, batch: Any) -> dict[str, float]:
            return self.forward_backward(batch)

    sizes = lengths("lognormal")
    batch = columns(1.0, sizes)
    rollouts = Rollouts([ids[:size] for ids, size in zip(batch["input_ids"], sizes, strict=True)])
    with twinkle.session("ray", groups=[DeviceGroup("trainer", 2, "CPU")]):
        mesh = DeviceMesh.from_sizes(dp_size=2, device_type="cpu")
        model = InOrder(build, optimizer=adamw, micro_batch_size=4, device_mesh=mesh, remote_group="trainer")

        def step() -> None:
            twinkle.get(model.forward_backward(rollouts) if balance else model.in_order(rollouts))
            twinkle.get(model.step())

        yield lambda: seconds(step)


SIDES: dict[str, Any] = {
    **{f"ours, {loss}, {part}": partial(ours, loss, part) for loss in ("cross_entropy", "grpo") for part in (0.5, 1.0)},
    **{f"bare, {loss}, {part}": partial(bare, loss, part) for loss in ("cross_entropy", "grpo") for part in (0.5, 1.0)},
    "trl": trl,
    **{
        f"{name}, {kind}": partial(passes, kind, packed=name == "packed")
        for kind in ("uniform", "even", "lognormal")
        for name in ("packed", "padded")
    },
    "even work": partial(two_ranks, balance=True),
    "rows in order": partial(two_ranks, balance=False),
}
ROWS = [
    *(
        Row(
            f"a step of {name}, {share} of the tokens count", "torch", f"ours, {loss}, {part}", f"bare, {loss}, {part}",
            "s of CPU", 1.1, by_hand="a bare loop in torch",
        )
        for name, loss in (("SFT", "cross_entropy"), ("GRPO", "grpo"))
        for share, part in (("half", 0.5), ("all", 1.0))
    ),
    Row("a step of SFT, half of the tokens count", "trl", "ours, cross_entropy, 0.5", "trl", "s of CPU", 0.6),
    *(
        Row(
            f"packs, lengths {kind}", "torch", f"packed, {kind}", f"padded, {kind}", "s of CPU", 1.0,
            by_hand="padded micro-batches",
        )
        for kind in ("uniform", "even", "lognormal")
    ),
    Row(
        "a step of two ranks, lengths lognormal", "torch", "even work", "rows in order", "s", None,
        by_hand="rows in order",
    ),
]  # fmt: skip

if __name__ == "__main__":
    main(SIDES, ROWS)
