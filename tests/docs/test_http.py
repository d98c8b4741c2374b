"""The pages on HTTP: their programs and commands run, and the servers that they describe take their arguments."""

from __future__ import annotations

import argparse
import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from twinkle.cli.serve import add_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
DEPLOYMENT = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
README = (ROOT / "packages" / "twinkle-http" / "README.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


class Served(NamedTuple):
    folder: Path
    environment: dict[str, str]

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server of the page, on a free port."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "models.py").write_text(blocks(HTTP, "python")[0], encoding="utf-8")
    kept = {key: value for key, value in os.environ.items() if key != "TWINKLE_TOKEN"}
    environment = {**kept, "PATH": f"{BIN}{os.pathsep}{kept['PATH']}"}
    script = f"exec 2>&1\n{blocks(HTTP, 'sh')[0].rstrip()} --port 0\n".replace(
        "\ntwinkle serve", "\nexec twinkle serve"
    )
    with subprocess.Popen(
        ["bash", "-ec", script], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        limit = threading.Timer(60.0, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            limit.cancel()
            assert address.startswith("http://127.0.0.1:"), address
            token = (folder / "token").read_text().strip()
            yield Served(folder, {**environment, "TWINKLE_ADDRESS": address, "TWINKLE_TOKEN": token})
            process.terminate()
            assert process.wait(60) == 0
        finally:
            limit.cancel()
            process.kill()


def test_the_program_of_the_page_runs(served: Served) -> None:
    served.run(sys.executable, "-c", blocks(HTTP, "python")[1])


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl on this machine")
def test_the_requests_of_the_page_are_answered(served: Served) -> None:
    assert served.run("bash", "-ec", blocks(HTTP, "sh")[1]) == '{"result":[1,2]}'


def test_the_requests_of_the_readme_are_answered(served: Served) -> None:
    [commands] = blocks(README, "sh")
    build, call = commands.splitlines()
    id_ = json.loads(answer(build, served, ""))["id"]
    assert json.loads(answer(call, served, id_)) == {"result": [1, 2]}


def answer(command: str, served: Served, id_: str) -> str:
    """The answer to a command with curl; without curl, to the request that it makes."""
    environment = {**served.environment, "ID": id_}
    command = command.replace("http://127.0.0.1:8765", served.environment["TWINKLE_ADDRESS"])
    if shutil.which("curl") is not None:
        return Served(served.folder, environment).run("bash", "-ec", command)
    for name in ("TWINKLE_TOKEN", "ID"):
        command = command.replace(f"${name}", environment[name])
    _, _, url, _, header, _, body = shlex.split(command, comments=True)
    name, _, value = header.partition(": ")
    with urllib.request.urlopen(urllib.request.Request(url, body.encode(), {name: value}), timeout=60) as found:
        text: str = found.read().decode()
        return text


def parsed(words: list[str]) -> argparse.Namespace:
    assert words[1] == "serve", words
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    return parser.parse_args(words[1:])


def test_the_unit_starts_a_server_and_lets_it_drain() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as its documentation says
    unit.read_string(blocks(DEPLOYMENT, "ini")[0])
    service = unit["Service"]
    args = parsed(shlex.split(service["ExecStart"]))
    assert args.mode == "ray" and args.group == ["actor=8xGPU"] and args.token_file == "/etc/twinkle/token"
    assert service["KillMode"] == "mixed" and int(service["TimeoutStopSec"]) > 60


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
def test_systemd_knows_each_line_of_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "twinkle.service"
    unit.write_text(blocks(DEPLOYMENT, "ini")[0].replace("/srv/twinkle/.venv/bin/twinkle", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, unit.name in done.stderr) == (0, False), done.stderr


def test_the_container_starts_a_server() -> None:
    text = blocks(DEPLOYMENT, "dockerfile")[0]
    words = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.M)[0])
    args = parsed(words)
    assert args.host == "0.0.0.0" and args.insecure
    for copied in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE):
        assert all((ROOT / name).exists() for name in copied.split() if name != "models.py"), copied
    assert all((ROOT / path).exists() for path in re.findall(r"\./(packages/[\w-]+)", text))


def test_commands_of_the_page_are_those_of_the_command() -> None:
    lines = [line for page in (HTTP, DEPLOYMENT, README) for block in blocks(page, "sh") for line in block.splitlines()]
    serving = [line for line in lines if line.startswith("twinkle serve")]
    assert len(serving) >= 2
    for line in serving:
        parsed(shlex.split(line))
