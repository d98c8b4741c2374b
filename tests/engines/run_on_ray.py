"""Trains a tiny model on two workers of a Ray cluster and prints the figures as JSON."""

import json

from tiny_models import Build, ragged, sgd

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import TransformersModel


def main() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=2, device_type="cpu")
    with twinkle.session("ray", groups=[DeviceGroup("trainer", 2, "CPU")], start_timeout=600):
        model = TransformersModel(
            Build("qwen2"), optimizer=sgd, micro_batch_size=2, device_mesh=mesh, remote_group="trainer"
        )
        loss = model.forward_backward(ragged(5, 1))["loss"]
        norm = model.step()["grad_norm"]
        logprobs = [row.tolist() for row in model.logprobs(ragged(3, 2))]
        print(json.dumps({"loss": loss, "norm": norm, "logprobs": logprobs}))


if __name__ == "__main__":
    main()
