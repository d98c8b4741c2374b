"""The container file of the page on deployment, line by line in an empty folder and a clean environment."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Workspace

pytestmark = pytest.mark.packaging

TOKEN = "one-token-of-the-container"
SECRET = "/run/secrets/token"


def block(page: Path, language: str) -> str:
    """The first block of a language on a page."""
    found = re.search(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None, (page, language)
    return found[1]


def follow(workspace: Workspace, steps: list[tuple[str, str]], work: Path, python: Path) -> list[str]:
    """Follow the lines of a container file; returns the command that it starts."""
    command = []
    for name, rest in steps:
        if name == "COPY":
            *sources, target = rest.split()
            for source in sources:
                there = work / target if len(sources) == 1 and target != "./" else work / source
                if (workspace.root / source).is_dir():
                    shutil.copytree(workspace.root / source, there)
                elif source != "models.py":  # the reader's own
                    shutil.copy(workspace.root / source, there)
        elif name == "RUN" and rest.startswith("pip install"):
            workspace.run(python, "-m", *shlex.split(rest), cwd=work, limit=600.0)
        elif name in ("ENTRYPOINT", "CMD"):
            command += json.loads(rest)
        else:
            assert name in ("FROM", "WORKDIR", "USER", "EXPOSE") or rest.startswith("useradd"), (name, rest)
    return command


def test_its_lines_make_a_server_that_drains(workspace: Workspace, tmp_path: Path) -> None:
    python = workspace.environment(tmp_path / "env", seed=True)
    workspace.install(python, "numpy", "ray", "torch")  # quicker than by pip, which finds them
    text = block(workspace.root / "docs" / "deployment.md", "dockerfile").replace("\\\n", " ")
    steps = [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines())]
    work = tmp_path / "work"
    work.mkdir()
    (work / "models.py").write_text(block(workspace.root / "docs" / "http.md", "python"), encoding="utf-8")
    command = follow(workspace, steps, work, python)
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(TOKEN)
    words = [str(secret) if word == SECRET else word for word in command] + ["--port", "0"]
    environment = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    with subprocess.Popen(words, cwd=work, env=environment, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(60.0, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip().removeprefix("http://0.0.0.0:")
            headers = {"authorization": f"Bearer {TOKEN}", "host": "localhost:8765"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/Actor", b'{"scale": 2.0}', headers)
            with urllib.request.urlopen(request, timeout=30.0) as found:
                assert found.status == 201
            process.terminate()
            assert process.wait(30.0) == 0
        finally:
            limit.cancel()
            process.kill()
