"""The goldens of tests/engines/algorithms/peers.json, computed again by verl's and TRL's own functions.

python benchmarks/peers/formulas.py   # `make test-peers`: installs both in environments of their own, and compares

The same columns, of four answers with 5, 3, 4 and 2 tokens in two groups, as tests/engines/algorithms/test_peers.py
gives to the losses and advantages here. TRL's losses "sigmoid" and "ipo" are lines inside its trainer, which no program
can call: they are not compared.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

GOLDENS = Path(__file__).parents[2] / "tests/engines/algorithms/peers.json"
LENGTHS = [5, 3, 4, 2]
MASK = (torch.arange(5) < torch.tensor(LENGTHS)[:, None]).double()


def column(step: float, shift: float = 0.0) -> torch.Tensor:
    """Numbers of twenty tokens."""
    return torch.sin(torch.arange(1, 21, dtype=torch.float64) * step).view(4, 5) + shift


def of_verl() -> dict[str, Any]:
    """verl's losses with the first numbers of their gradients, and its advantages by token."""
    verl: Any = import_module("verl.trainer.ppo.core_algos")
    make_config: Any = import_module("verl.workers.config").ActorConfig
    old, advantages, by_sequence = column(2.1, -1.5), column(3.7), torch.tensor([0.5, -1.0, 2.0, -0.25])
    goldens = json.loads(GOLDENS.read_text())["loss"]

    def policy(name: str, made: Any, mode: str, given: torch.Tensor) -> torch.Tensor:
        options = {"low": 0.2, "high": 0.28, "dual": 1e9, **goldens[name][0]}
        config = make_config(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
        for field, value in (("low", options["low"]), ("high", options["high"]), ("c", options["dual"])):
            object.__setattr__(config, f"clip_ratio_{field}", value)
        rows = by_sequence[:, None].expand(4, 5) if name == "gspo" else advantages
        loss: torch.Tensor = made(old, given, rows, MASK, mode, config)[0]
        if beta := options.get("beta"):
            penalty = verl.kl_penalty_forward(given, column(0.7, -1.5), "k3")
            loss = loss + beta * verl.agg_loss(penalty, MASK, mode)
        return loss

    vanilla, whole = verl.compute_policy_loss_vanilla, "seq-mean-token-mean"
    found: dict[str, Any] = {}
    for name, made, mode in (
        ("ppo", vanilla, "token-mean"),
        ("dapo", vanilla, "token-mean"),
        ("grpo", vanilla, whole),
        ("gspo", verl.compute_policy_loss_gspo, whole),
        ("cispo", verl.compute_policy_loss_cispo, "token-mean"),
        ("value", None, "token-mean"),
    ):
        given = (column(6.1) if made is None else column(1.3, -1.5)).requires_grad_()
        if made is None:
            loss = verl.compute_value_loss(given, column(5.3), column(4.1), MASK, goldens[name][0]["clip"])[0]
        else:
            loss = policy(name, made, mode, given)
        (gradient,) = torch.autograd.grad(loss, given)
        found[f"loss {name}"] = [float(loss.detach()), *gradient.flatten()[:4].tolist()]

    rewards = torch.zeros(4, 5, dtype=torch.float64)
    for row, (length, reward) in enumerate(zip(LENGTHS, [0.5, -1.0, 2.0, 0.25], strict=True)):
        rewards[row, length - 1] = reward
    groups: Any = [0, 0, 1, 1]
    bases, decays = torch.tensor([0.3, 0.3, 0.7, 0.7]), SimpleNamespace(gamma=0.9)
    gae, returns = verl.compute_gae_advantage_return(rewards, column(4.1) * MASK, MASK, 0.9, 0.8)
    made = {
        "grpo": verl.compute_grpo_outcome_advantage(rewards, MASK, groups)[0],
        "rloo": verl.compute_rloo_outcome_advantage(rewards, MASK, groups)[0],
        "remax": verl.compute_remax_outcome_advantage(rewards, bases, MASK)[0],
        "reinforce++": verl.compute_reinforce_plus_plus_outcome_advantage(rewards, MASK, decays)[0],
        "reinforce++baseline": verl.compute_reinforce_plus_plus_baseline_outcome_advantage(rewards, MASK, groups)[0],
        "gae": gae,
    }
    found |= {f"by_token {name}": value[MASK.bool()].tolist() for name, value in made.items()}
    return {**found, "returns": returns[MASK.bool()].tolist()}


def of_trl() -> dict[str, Any]:
    """TRL's losses of pairs: of each answer the mean of its log-probabilities."""
    cpo: Any = import_module("trl.experimental.cpo.cpo_trainer").CPOTrainer
    orpo: Any = import_module("trl.experimental.orpo.orpo_trainer").ORPOTrainer
    means = (column(1.3, -2.5) * MASK).sum(1) / MASK.sum(1)
    here = SimpleNamespace(device="cpu")
    own = SimpleNamespace(
        alpha=0.0, beta=2.0, simpo_gamma=1.0, loss_type="simpo", label_smoothing=0.0, accelerator=here
    )
    simpo = cpo.cpo_loss(own, means[::2], means[1::2])[0]
    odds = orpo.odds_ratio_loss(SimpleNamespace(beta=0.1, accelerator=here), means[::2], means[1::2])[0]
    return {"pairs simpo": simpo.tolist(), "pairs orpo": (-means[::2] - odds).tolist()}


def main() -> int:
    """Compare, and return the number of goldens that differ."""
    import environments

    goldens, bad = json.loads(GOLDENS.read_text()), 0
    for peer in ("verl", "trl"):
        if (reason := environments.missing(peer)) is not None:
            print(f"{peer}: not compared: {reason}")
            bad += 1
            continue
        command = [str(environments.python_of(peer)), __file__, peer]
        said = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        if said.returncode:
            print(f"{peer}: {said.stderr.strip()}")
            bad += 1
            continue
        for name, found in json.loads(said.stdout.splitlines()[-1]).items():
            kind, _, own = name.partition(" ")
            golden = goldens[kind][own] if own else goldens[kind]
            right = golden[1] if kind == "loss" else golden
            same = all(math.isclose(*pair, rel_tol=1e-4, abs_tol=1e-5) for pair in zip(found, right, strict=True))
            bad += not same
            print(f"{peer} {environments.version_of(peer)}: {name}: {'the same' if same else f'{found}, not {right}'}")
    return bad


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps({"verl": of_verl, "trl": of_trl}[sys.argv[1]]()))
    else:
        sys.exit(main())
