"""What a cluster is joined with: an address that answers, a token that is its owner's alone, and harmless variables."""

from __future__ import annotations

import socket
import stat
import time
from typing import TYPE_CHECKING

import pytest
import ray

from twinkle_ray.cluster.cluster import check_reachable, make_token
from twinkle_ray.cluster.environment import carried
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from pathlib import Path


def test_what_listens_everywhere_is_reached() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        check_reachable(f"127.0.0.1:{listener.getsockname()[1]}", 5.0)


def test_what_listens_on_loopback_alone_cannot_be_joined() -> None:
    own = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray's own gap
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        if own == "127.0.0.1":  # a host without a default route
            check_reachable(f"localhost:{port}", 5.0)
            return
        with pytest.raises(BackendError, match=own):
            check_reachable(f"localhost:{port}", 0.5)


def test_an_address_where_nothing_listens_is_an_error_in_time() -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(BackendError, match=f"127.0.0.1:{port}"):
        check_reachable(f"127.0.0.1:{port}", 1.0)
    assert time.monotonic() - began < 60.0


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_is_made_once(token: Path) -> None:
    make_token()
    made = token.read_text()
    assert len(made) == 64 and mode(token) == 0o600 and mode(token.parent) == 0o700
    make_token()
    assert token.read_text() == made


def test_one_that_others_can_read_is_taken_from_them(token: Path) -> None:
    token.parent.mkdir()
    token.write_text("mine")
    token.chmod(0o644)
    make_token()
    assert (token.read_text(), mode(token)) == ("mine", 0o600)


def test_one_at_another_place_or_in_a_variable_is_the_users(
    token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    make_token()
    assert mode(tmp_path / "elsewhere") == 0o600 and not token.exists()
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    make_token()
    assert not token.exists()


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


def test_names_with_wildcards_take_any_variable_along_but_devices() -> None:
    for name in SECRET | OF_THIS_HOST:
        own = {} if name.endswith("_VISIBLE_DEVICES") else {name: EVERYTHING[name]}
        assert carried(EVERYTHING, (name,)) == HARMLESS | own
    assert carried(EVERYTHING, ("HF_*", "MY_?AR")) == HARMLESS | {"HF_TOKEN": "secret", "MY_VAR": "mine"}
    assert carried(EVERYTHING, ("hf_*", "MY_")) == HARMLESS
