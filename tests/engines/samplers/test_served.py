"""The shipped sampler over HTTP: a server that loads nothing of it beforehand, its own client, and plain JSON."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import Build

import twinkle
from twinkle.engines import Rollouts, SamplingParams, TransformersSampler

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a-token-for-this-test"
PROMPTS = [[3, 5, 7], [11], [2, 4, 6, 8]]
PARAMS = SamplingParams(n=2, max_new_tokens=4, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("served")
    Build("llama")().save_pretrained(found / "model")
    (found / "token").write_text(TOKEN)
    (found / "token").chmod(0o600)
    return found


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "twinkle", "serve", "twinkle.engines:TransformersSampler", "--mode", "threads"]
    command += ["--group", "rollout=2xCPU", "--port", "0", "--token-file", str(folder / "token")]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            assert server.wait(200) == 0


def written(rollouts: Rollouts) -> Any:
    return [ids.tolist() for ids in rollouts.ids], rollouts.counts, rollouts.prompts, rollouts.finish


@pytest.mark.slow
def test_the_client_samples_as_in_one_process(folder: Path, address: str) -> None:
    right = written(TransformersSampler(str(folder / "model")).sample(PROMPTS, PARAMS))
    with twinkle.session("http", address=address, token=TOKEN):
        mesh = twinkle.DeviceMesh.from_sizes(dp_size=2)
        sampler = TransformersSampler(str(folder / "model"), device_mesh=mesh, remote_group="rollout")
        assert written(twinkle.get(sampler.sample(PROMPTS, PARAMS))) == right
