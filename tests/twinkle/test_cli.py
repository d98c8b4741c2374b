"""The `twinkle` command: its subcommands are found, and the doctor tells what is here."""

from __future__ import annotations

import pytest

import twinkle
from twinkle.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"twinkle {twinkle.__version__}\n"


def test_unknown_command_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["train"])
    assert ended.value.code == 2
    assert "mesh" in capsys.readouterr().err


def test_doctor_lists_versions_backends_and_devices(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert code == (1 if any(line.startswith("!") for line in lines) else 0)
    told = {line[2:].split("  ")[0] for line in lines}
    assert {"python", "twinkle-mesh", "ray", "torch", "backend local", "backend threads", "backend ray", "CPUs"} <= told


def test_mesh_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mesh", "--dp", "2", "--tp", "2"]) == 0
    assert "dp=2, tp=2" in capsys.readouterr().out
