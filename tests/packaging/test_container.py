"""A checkout by plain pip: one package, then all by the container file of the page on deployment, line by line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import threading
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Workspace

pytestmark = pytest.mark.packaging

TOKEN = "one-token-of-the-container"
SECRET = "/run/secrets/token"
EXAMPLES = (
    ("post_training", "matplotlib"),
    ("grpo", "tokenizers"),
    ("sft", "tokenizers"),
    ("streamed", "matplotlib", "--out", "out"),
    ("draw_schedules", "matplotlib", "out"),
)


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


@dataclass(frozen=True)
class Image:
    """What the lines made.

    Attributes:
        python: The environment's Python.
        work: The folder.
        command: The command that starts the server.
        one: With one package of the checkout alone, what it had installed, and what a program printed.
    """

    python: Path
    work: Path
    command: list[str]
    one: tuple[set[str], str]


@pytest.fixture(scope="module")
def image(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    python = workspace.environment(folder / "env", seed=True)
    seeded = workspace.installed(python)
    source = workspace.root / "packages" / "twinkle-mesh"
    workspace.run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source, cwd=folder)
    program = "from twinkle_mesh import DeviceMesh; print(DeviceMesh.from_sizes(dp_size=2, tp_size=2).world_size)"
    one = workspace.installed(python) - seeded, workspace.run(python, "-I", "-c", program, cwd=folder)
    workspace.install(python, "pip", "numpy", "ray", "torch", exact=True)  # quicker than by pip, which finds them
    text = block(workspace.root / "docs" / "deployment.md", "dockerfile").replace("\\\n", " ")
    steps = [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in text.splitlines())]
    work = folder / "work"
    work.mkdir()
    (work / "models.py").write_text(block(workspace.root / "docs" / "http.md", "python"), encoding="utf-8")
    return Image(python, work, follow(workspace, steps, work, python), one)


def test_plain_pip_installs_one_package_from_a_checkout(image: Image) -> None:
    assert image.one == ({"twinkle-mesh"}, "4\n")


def test_plain_pip_installs_all_from_a_checkout(workspace: Workspace, image: Image, tmp_path: Path) -> None:
    assert workspace.run(image.python, "-m", "pip", "check", cwd=tmp_path)
    version = workspace.run(image.python.with_name("twinkle"), "--version", cwd=tmp_path)
    assert version.startswith("twinkle 0.")
    for name, library, *options in EXAMPLES:
        program = workspace.root / "examples" / f"{name}.py"
        done = subprocess.run(
            [image.python, program, *options], capture_output=True, text=True, timeout=300, check=False
        )
        [*_, line] = done.stderr.splitlines()
        assert "Traceback" not in done.stderr
        assert line.endswith(
            f"{name}.py needs {library}, of the extra demo: pip install '.[demo]' in the checkout brings it"
        )
        assert done.returncode


def test_its_lines_make_a_server_that_drains(image: Image, tmp_path: Path) -> None:
    command = image.command
    secret = tmp_path / "token"
    secret.touch(0o600)
    secret.write_text(TOKEN)
    words = [str(secret) if word == SECRET else word for word in command] + ["--port", "0"]
    environment = {"PATH": f"{image.python.parent}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}
    with subprocess.Popen(words, cwd=image.work, env=environment, stdout=subprocess.PIPE, text=True) as process:
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
