"""Which variables leave the driver."""

from __future__ import annotations

from twinkle_ray.cluster.environment import carried, inherited

EVERYTHING = {
    "HOME": "/home/me",
    "PATH": "/bin",
    "NCCL_DEBUG": "INFO",
    "CUDA_VISIBLE_DEVICES": "0",
    "RAY_ADDRESS": "here",
    "WANDB_API_KEY": "secret",
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "MY_VAR": "mine",
}


def test_a_cluster_of_ones_own_inherits_system_and_libraries() -> None:
    assert inherited(EVERYTHING).keys() == {"HOME", "PATH", "NCCL_DEBUG", "CUDA_VISIBLE_DEVICES", "RAY_ADDRESS"}
    assert "MY_VAR" in inherited(EVERYTHING, ("MY_*",))


def test_workers_are_given_nothing_that_describes_another_host() -> None:
    assert carried(EVERYTHING) == {"NCCL_DEBUG": "INFO"}
    assert carried(EVERYTHING, ("HF_*", "MY_VAR")).keys() == {"NCCL_DEBUG", "HF_TOKEN", "MY_VAR"}
