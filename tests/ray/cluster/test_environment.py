"""Which variables leave the driver for a cluster that was joined."""

from __future__ import annotations

import pytest

from twinkle_ray.cluster.environment import carried

HARMLESS = {
    "NCCL_DEBUG": "INFO",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "TORCH_LOGS": "+dynamo",
    "HF_HOME": "/data/hf",
    "HF_HUB_OFFLINE": "1",
    "https_proxy": "http://proxy:3128",
    "SSL_CERT_FILE": "/etc/ssl/ca.pem",
    "TOKENIZERS_PARALLELISM": "false",
    "CUDA_LAUNCH_BLOCKING": "1",
    "OMP_NUM_THREADS": "4",
}
SECRET = {
    "WANDB_API_KEY": "secret",
    "HF_TOKEN": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "VLLM_API_KEY": "secret",
    "HTTP_PROXY": "http://me:secret@proxy:3128",
}
OF_THIS_HOST = {
    "HOME": "/home/me",
    "PATH": "/bin",
    "PYTHONPATH": "/home/me/src",
    "PYTHONHASHSEED": "0",
    "RAY_ADDRESS": "here",
    "RAY_AUTH_TOKEN": "secret",
    "XDG_RUNTIME_DIR": "/run/user/1",
    "CUDA_VISIBLE_DEVICES": "0",
    "CUDA_HOME": "/usr/local/cuda",
    "ASCEND_RT_VISIBLE_DEVICES": "0",
    "VLLM_HOST_IP": "10.0.0.1",
    "MY_VAR": "mine",
}
EVERYTHING = HARMLESS | SECRET | OF_THIS_HOST


def test_what_is_harmless_travels_and_nothing_else() -> None:
    assert carried(EVERYTHING) == HARMLESS


@pytest.mark.parametrize("name", sorted((SECRET | OF_THIS_HOST).keys() - {"CUDA_VISIBLE_DEVICES"}))
def test_a_name_takes_any_variable_along_but_devices(name: str) -> None:
    if name.endswith("_VISIBLE_DEVICES"):
        assert carried(EVERYTHING, (name,)) == HARMLESS
    else:
        assert carried(EVERYTHING, (name,)) == HARMLESS | {name: EVERYTHING[name]}


def test_patterns_are_names_with_wildcards() -> None:
    assert carried(EVERYTHING, ("HF_*", "MY_?AR")) == HARMLESS | {"HF_TOKEN": "secret", "MY_VAR": "mine"}
    assert carried(EVERYTHING, ("hf_*", "MY_")) == HARMLESS
