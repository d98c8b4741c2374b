"""Post-training of a small GPT: sampler (dp=4) -> rewards -> actor (dp=2, pp=2, tp=2) -> weights back to the sampler.

python examples/post_training.py                # twelve workers on a Ray cluster that it starts and ends
python examples/post_training.py --mode local   # the same program in one process
python examples/post_training.py --ahead 64     # samplers work ahead of the GRPO loop, with the same code

The same program over HTTP: the workers are at a server, and the loop is on another machine. Both take the token from
TWINKLE_TOKEN.

python examples/post_training.py --serve 8765                                     # on the machine with the hardware
python examples/post_training.py --mode http --address http://127.0.0.1:8765
"""

from __future__ import annotations

import argparse
import os
import zlib
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from show import History, placement, progress, report
from split_gpt import Loss, Rows, SplitGPT, torch_mesh
from text import decode, encode, passages, share_of_real_phrases
from tiny_gpt import Size, TinyGPT, own_device, write_on
from torch import Tensor

import twinkle
from twinkle import Batch, DataLoader, DeviceGroup, DeviceMesh, remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

PROMPT = 8  # words of a prompt
GROUP = 8  # texts for each prompt, whose rewards are compared
PASSES = 2  # steps of the actor on each batch of texts
CLIP = 0.2  # largest relative change of the probability of a word
STREAMED: dict[str, Any] = {"rows": 16, "order": "arrival", "max_lag": 4}


Prompt = tuple[int, str]
"""The step for which it was read, and its text."""


@dataclass
class Rollouts:
    """One row for each prompt: its texts, with their log-probabilities, rewards and advantages."""

    words: Tensor  # (prompts, GROUP, words of a text)
    logprobs: Tensor  # (prompts, GROUP, words that were written)
    rewards: Tensor  # (prompts, GROUP)
    advantages: Tensor  # (prompts, GROUP)


@remote_class()
class Sampler:
    """Writes texts; each worker holds the whole model and takes its share of the prompts."""

    def __init__(self, size: Size, seed: int, device_mesh: DeviceMesh, remote_group: str | None = None) -> None:
        self.size, self.seed, self.device = size, seed, own_device(device_mesh)
        self.model = TinyGPT(size, seed).to(self.device)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def sample(self, prompts: list[Prompt]) -> Rollouts:
        given = torch.tensor([encode(p, self.size.vocabulary) for _, p in prompts], dtype=torch.long)
        given = given.reshape(-1, PROMPT)
        # Each text has its own seed, so that the layout does not change what is written.
        seeds = [zlib.crc32(f"{self.seed}/{step}/{text}/{i}".encode()) for step, text in prompts for i in range(GROUP)]
        draws = torch.empty(len(seeds), self.size.context - PROMPT)
        for row, seed in zip(draws, seeds, strict=True):
            row.uniform_(generator=torch.Generator().manual_seed(seed))
        given = given.repeat_interleave(GROUP, dim=0)
        words, logprobs = write_on(self.model, given.to(self.device), draws.to(self.device))
        ungraded = torch.zeros(len(prompts), GROUP)
        words = words.cpu().reshape(*ungraded.shape, self.size.context)
        return Rollouts(words, logprobs.cpu().reshape(*ungraded.shape, draws.shape[1]), ungraded, ungraded)

    def weights(self) -> dict[str, Tensor]:
        return dict(self.model.named_parameters())


@remote_class()
class Rewards:
    """Grades a text by its phrases that are real and new, relative to the other texts of its prompt."""

    def __init__(self, size: Size, device_mesh: DeviceMesh, remote_group: str | None = None) -> None:
        self.size = size

    @remote_function(dispatch="slice_dp", collect="flatten")
    def grade(self, rollouts: Rollouts) -> Rollouts:
        written = rollouts.words[:, :, PROMPT - 2 :].tolist()
        shares = [[share_of_real_phrases(text, self.size.vocabulary) for text in texts] for texts in written]
        rewards = torch.tensor(shares).reshape(-1, GROUP)
        spread = rewards.std(dim=1, keepdim=True) + 1e-4
        return replace(rollouts, rewards=rewards, advantages=(rewards - rewards.mean(dim=1, keepdim=True)) / spread)


@remote_class()
class Actor:
    """Trains the model, split over its mesh."""

    def __init__(self, size: Size, seed: int, device_mesh: DeviceMesh, remote_group: str | None = None) -> None:
        self.size = size
        self.gpt = SplitGPT(size, seed, torch_mesh(device_mesh), micro_batches=2)
        groups = self.gpt.parameter_groups()
        self.optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95), foreach=True)

    @remote_function(dispatch="slice_dp", collect="mean")
    def learn(self, texts: Sequence[str]) -> dict[str, float]:
        words = torch.tensor([encode(text, self.size.vocabulary) for text in texts])
        return self._step(words[:, :-1], {"next": words[:, 1:]}, next_word_loss)

    @remote_function(dispatch="slice_dp", collect="mean")
    def update(self, rollouts: Rollouts) -> dict[str, float]:
        words = rollouts.words.flatten(0, 1)
        rows = {
            "written": words[:, PROMPT:],
            "logprobs": rollouts.logprobs.flatten(0, 1),
            "advantages": rollouts.advantages.flatten(0, 1)[:, None],
        }
        for _ in range(PASSES):
            metrics = self._step(words[:, :-1], rows, grpo_loss)
        return metrics | {"reward": rollouts.rewards.mean().item()}

    def _step(self, words: Tensor, rows: Rows, loss: Loss) -> dict[str, float]:
        mean = self.gpt.backward(words, rows, loss)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {} if mean is None else {"loss": mean}

    def weights(self) -> dict[str, Tensor]:
        return dict(self.gpt.model.named_parameters())


def next_word_loss(logits: Tensor, rows: Rows) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), rows["next"].flatten())


def grpo_loss(logits: Tensor, rows: Rows) -> Tensor:
    written = rows["written"]
    logprobs = F.log_softmax(logits[:, -written.shape[1] :], dim=-1).gather(2, written[:, :, None])[:, :, 0]
    ratio = (logprobs - rows["logprobs"]).exp()
    return -torch.min(ratio * rows["advantages"], ratio.clamp(1 - CLIP, 1 + CLIP) * rows["advantages"]).mean()


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    mode: str = "ray"
    address: str = ""
    sft_steps: int = 120
    steps: int = 20
    ahead: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Layout:
    """The groups of workers, and the mesh of each component."""

    copies: DeviceMesh
    split: DeviceMesh
    groups: tuple[DeviceGroup, ...]


def layout(mode: str) -> Layout:
    """Four samplers, and an actor with eight workers, or with four on a node with eight GPUs."""
    gpus = torch.cuda.device_count()
    device = "cuda" if gpus >= (1 if mode == "local" else 8) else "cpu"
    replicas = 1 if device == "cuda" and 8 <= gpus < 12 else 2  # on a node of eight GPUs four of them train
    copies = DeviceMesh.from_sizes(dp_size=4, device_type=device)
    split = DeviceMesh.from_sizes(dp_size=replicas, pp_size=2, tp_size=2, device_type=device)
    return Layout(copies, split, (DeviceGroup("sampler", 4, device), DeviceGroup("actor", split.world_size, device)))


def start(options: Options, groups: tuple[DeviceGroup, ...]) -> None:
    """Start the session, or join the server's."""
    given: dict[str, Any] = {"start_timeout": 600} if options.mode == "ray" else {}  # twelve share the CPUs
    if options.mode == "http":
        given = {"address": options.address, "token": os.environ.get("TWINKLE_TOKEN", "")}
    twinkle.initialize(options.mode, groups=list(groups), seed=options.seed, **given)


def serve(options: Options, port: int) -> None:
    """Serve the components to loops on other machines, until SIGTERM or Ctrl-C."""
    start(options, layout(options.mode).groups)
    with twinkle.serve([Sampler, Rewards, Actor], port=port, token=os.environ.get("TWINKLE_TOKEN")) as server:
        print(server.address, flush=True)
        server.wait()
    twinkle.shutdown()


def train(options: Options, size: Size) -> History:
    """Run the loop and return the metrics of the run."""
    seed, history, places = options.seed, History(options.mode), layout(options.mode)
    copies, split = places.copies, places.split
    placement(options.mode, {"sampler, rewards": copies, "actor": split})

    texts = DataLoader(passages(size.context, every=4), batch_size=64, shuffle=True, seed=seed)
    prompts = DataLoader(passages(PROMPT, every=4), batch_size=16, shuffle=True, seed=seed)
    real = [encode(text, size.vocabulary) for text in passages(size.context - PROMPT + 2, every=500)]
    history.reference = sum(share_of_real_phrases(ids, size.vocabulary) for ids in real) / len(real)
    with history.phase("start"):
        start(options, places.groups)
        sampler = Sampler(size, seed, device_mesh=copies, remote_group="sampler")
        rewards = Rewards(size, device_mesh=copies, remote_group="sampler")
        actor = Actor(size, seed, device_mesh=split, remote_group="actor")
        sync = twinkle.WeightSync(actor, sampler)

    with history.phase("supervised"), progress("supervised", options.sft_steps) as show:
        for batch in batches(texts, options.sft_steps):
            metrics = actor.learn(batch)
            history.losses.append(metrics["loss"])
            show(loss=metrics["loss"])
        sync()
        history.before = some_texts(sampler, size)

    read = ([(step, text) for text in batch] for step, batch in enumerate(batches(prompts, options.steps)))
    with (
        history.phase("GRPO"),
        progress("GRPO", options.steps) as show,
        twinkle.stream(read, sampler.sample, rewards.grade, ahead=options.ahead, **STREAMED) as rollouts,
    ):
        for batch in rollouts:
            metrics = actor.update(batch)
            history.rewards.append(metrics["reward"])
            with history.phase("of which weight sync"):
                sync()
            show(loss=metrics["loss"], reward=metrics["reward"])
        history.stream = rollouts.stats()
        history.after = some_texts(sampler, size)

    assert sync.delivery is not None
    history.weight_bytes = sync.delivery.moved * sync.version
    history.calls = twinkle.stats()
    twinkle.shutdown()
    return history


def batches(loader: DataLoader[Batch[str]], steps: int) -> Iterator[Batch[str]]:
    """A number of batches, over as many epochs as they take."""
    return islice(chain.from_iterable(repeat(loader)), steps)


def some_texts(sampler: Sampler, size: Size) -> list[str]:
    """A text for each of a few prompts, with the same prompts and draws at every call."""
    prompts = passages(PROMPT, every=15_000)[:4]
    words = sampler.sample([(-1, prompt) for prompt in prompts]).words[:, 0].tolist()
    return [f"{prompt} | {decode(text[PROMPT:], size.vocabulary)}" for prompt, text in zip(prompts, words, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Options()
    parser.add_argument("--mode", choices=("ray", "local", "http"), default=defaults.mode)
    parser.add_argument("--address", default=defaults.address, help="URL of the server, for --mode http")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve the components instead of training")
    parser.add_argument("--sft-steps", type=int, default=defaults.sft_steps, help="supervised steps on the text")
    parser.add_argument("--steps", type=int, default=defaults.steps, help="GRPO steps")
    parser.add_argument("--ahead", type=int, default=defaults.ahead, help="prompts at work ahead of the GRPO loop")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for curves and metrics")
    arguments = vars(parser.parse_args())
    folder, port = arguments.pop("out").resolve(), arguments.pop("serve")
    if port is not None:
        serve(Options(**arguments), port)
        return
    report(train(Options(**arguments), Size()), folder)


if __name__ == "__main__":
    main()
