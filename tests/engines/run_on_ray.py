"""Trains a tiny model on two workers of a Ray cluster and prints the figures as JSON."""

import json

import torch
from tiny_models import Build, logprobs_of, ragged, sgd

import twinkle
from twinkle import DeviceGroup, DeviceMesh, remote_class, remote_function
from twinkle.engines import Rollouts, TransformersModel

COUNTS = [2, 1, 0, 3, 1, 2]


def rollouts(rows: list[int]) -> Rollouts:
    """Rows of sequences whose lengths differ much, with a column that no model reads."""
    lengths = [3 + (7 * (row + 1) * (i + 2)) % 23 for row in rows for i in range(COUNTS[row])]
    ids = [(torch.arange(n) * (n + 1)) % 60 + 1 for n in lengths]
    noise = [-(one % 7) / 3.0 for one in ids]
    return Rollouts(
        ids,
        mask=[torch.arange(n) > 1 for n in lengths],
        logprobs=noise,
        ref_logprobs=[one * 0.9 for one in noise],
        advantages=[float(n % 5) - 2.0 for n in lengths],
        counts=[COUNTS[row] for row in rows],
        columns={"wide": ["x" * 1000 for _ in rows]},
    )


@remote_class()
class Maker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def make(self, rows: list[int]) -> Rollouts:
        return rollouts(rows)


def main() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, device_type="cpu")
    groups = [DeviceGroup("trainer", 2, "CPU"), DeviceGroup("maker", 2, "CPU")]
    with twinkle.session("ray", groups=groups, start_timeout=600):
        model = TransformersModel(
            Build("qwen2"), optimizer=sgd, micro_batch_size=2, device_mesh=mesh, remote_group="trainer"
        )
        loss = model.forward_backward(ragged(5, 1))["loss"]
        norm = model.step()["grad_norm"]
        logprobs = [row.tolist() for row in logprobs_of(model, ragged(3, 2))]
        maker = twinkle.on("maker", DeviceMesh.from_sizes(dp_size=2, device_type="cpu")).create(Maker)
        made = maker.make(list(range(len(COUNTS))))
        own = TransformersModel(
            Build("qwen2"), optimizer=sgd, micro_batch_size=1, device_mesh=mesh, remote_group="trainer"
        )
        balanced = [row.tolist() for row in logprobs_of(own, twinkle.get(made))]
        losses = [dict(own.forward_backward(made, name, normalize="token")) for name in ("cross_entropy", "grpo")]
        losses.append(dict(own.forward_backward(made, "grpo", normalize="token", beta=0.1)))
        losses.append(dict(own.forward_backward(made, "ppo", whiten=True)))  # over both data ranks
        plain = rollouts(list(range(len(COUNTS))))
        again = TransformersModel(Build("qwen2"), optimizer=sgd, micro_batch_size=1)
        alone = [dict(again.forward_backward(plain, name, normalize="token")) for name in ("cross_entropy", "grpo")]
        in_order = [row.tolist() for row in logprobs_of(again, plain)]
        alone.append(dict(again.forward_backward(plain, "grpo", normalize="token", beta=0.1)))
        alone.append(dict(again.forward_backward(plain, "ppo", whiten=True)))
        told = {"loss": loss, "norm": norm, "logprobs": logprobs, "balanced": balanced, "in_order": in_order}
        print(json.dumps({**told, "losses": [losses, alone], "lengths": plain.lengths}))


if __name__ == "__main__":
    main()
