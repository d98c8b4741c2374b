"""The image and the program of examples/kubernetes, on a cluster of this host that is started as KubeRay starts one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.packaging.test_container import follow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.packaging.conftest import Workspace

pytestmark = [pytest.mark.packaging, pytest.mark.jobs]

SECONDS = 300.0
HERE = {"--workers": "2", "--device": "CPU", "--steps": "3"}
"""What the program gets here in place of the manifest's."""


@pytest.fixture(scope="module")
def image(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The environment's scripts and the folder that the lines of the Dockerfile make."""
    folder = tmp_path_factory.mktemp("image")
    python = workspace.environment(folder / "env", seed=True)
    workspace.install(python, "numpy", "ray", "torch", "transformers", "peft")  # quicker than by pip, which finds them
    text = (workspace.root / "examples" / "kubernetes" / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    work = folder / "work"
    work.mkdir()
    steps = [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]
    follow(workspace, steps, work, python)
    return python.parent, work


def free_ports(count: int) -> list[int]:
    """Ports of this host that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports: list[int] = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def healthy(port: int) -> bool:
    """What KubeRay's probes ask the agent of a node."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/healthz", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def cluster(image: tuple[Path, Path]) -> Iterator[tuple[str, dict[str, str]]]:
    """The dashboard's address, and the environment of the pods."""
    scripts, _ = image
    folder = tempfile.mkdtemp(prefix="twinkle-k-", dir="/tmp")  # short enough for Ray's sockets
    port, dashboard, agent, metrics = free_ports(4)
    environment = {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "HOME": folder,
        "RAY_ADDRESS": f"127.0.0.1:{port}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    own = [f"--temp-dir={folder}/r", f"--port={port}", f"--dashboard-port={dashboard}", "--num-cpus=2"]
    kuberay = [f"--dashboard-agent-listen-port={agent}", f"--metrics-export-port={metrics}", "--dashboard-host=0.0.0.0"]
    command = [str(scripts / "ray"), "start", "--head", "--block", *own, *kuberay]
    with open(f"{folder}/log", "wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as node:
        try:
            until = time.monotonic() + SECONDS
            while not healthy(agent):
                assert node.poll() is None and time.monotonic() < until, Path(folder, "log").read_text()
                time.sleep(0.5)
            yield f"http://127.0.0.1:{dashboard}", environment
        finally:
            node.terminate()
            node.wait(SECONDS)
            shutil.rmtree(folder, ignore_errors=True)


def test_the_program_of_the_manifest_is_submitted_and_saves(
    cluster: tuple[str, dict[str, str]], image: tuple[Path, Path], tmp_path: Path
) -> None:
    (address, environment), (scripts, work) = cluster, image
    manifest = yaml.safe_load((work / "examples" / "kubernetes" / "rayjob.yaml").read_text(encoding="utf-8"))
    program = manifest["spec"]["entrypoint"]
    for option, value in HERE.items():
        program, count = re.subn(rf"({option}) \S+", rf"\1 {value}", program)
        assert count == 1, option
    for old, new in (("/srv/twinkle/", f"{work}/"), ("/checkpoints/", f"{tmp_path}/")):
        assert program.count(old) == 1, old
        program = program.replace(old, new)
    submit = [str(scripts / "ray"), "job", "submit", "--address", address, "--submission-id", "twinkle"]
    done = subprocess.run(
        [*submit, "--", *program.split()], env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^step +(\d+) ", done.stdout, re.MULTILINE) == ["1", "2", "3"]
    (whole,) = (tmp_path / "sft").iterdir()
    assert (whole / "manifest.json").exists()
