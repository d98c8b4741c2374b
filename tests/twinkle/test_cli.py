"""The `twinkle` command: its subcommands are found, and the doctor tells what is here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import twinkle
from twinkle.cli import main
from twinkle.cli.doctor import ray_findings


def twinkle_command(*arguments: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "twinkle", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **variables},
    )


def test_a_closed_pipe_is_no_traceback() -> None:
    command = twinkle_command("mesh", "--dp", "512", "--tp", "8", PYTHONUNBUFFERED="1")
    assert command.stdout is not None and command.stderr is not None
    command.stdout.close()
    assert command.wait(60) == 141
    assert command.stderr.read() == b""
    command.stderr.close()


def test_help_version_and_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("usage: twinkle ") and "doctor" in shown
    with pytest.raises(SystemExit, match="2"):
        main(["train"])
    assert "mesh" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"twinkle {twinkle.__version__}\n"


def test_doctor_lists_versions_backends_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert code == (1 if any(line.startswith("!") for line in lines) else 0)
    told = {line[2:].split("  ")[0] for line in lines}
    assert {"open files", "RAY_ADDRESS"} <= told
    assert {"python", "twinkle-mesh", "ray", "torch", "backend local", "backend threads", "backend ray", "CPUs"} <= told


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "unset RAY_ADDRESS, or start the cluster: ray start --head"),
        ("ray://head:10001", "write host:port or auto"),
        ("head", "write host:port or auto"),
    ],
)
def test_an_address_that_cannot_be_joined_has_a_remedy(address: str, said: str) -> None:
    [found] = [finding for finding in ray_findings({"RAY_ADDRESS": address}) if finding.what == "RAY_ADDRESS"]
    assert said in found.remedy


def test_variables_of_a_launcher_have_a_remedy() -> None:
    found = {finding.what: finding for finding in ray_findings({"RANK": "0"})}
    assert found["launcher"].remedy == "unset RANK WORLD_SIZE"
