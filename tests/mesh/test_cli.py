from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

import pytest

from twinkle.cli.mesh import add_parser

if TYPE_CHECKING:
    from pathlib import Path


def twinkle_mesh(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="twinkle")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["mesh", *arguments])
    code: int = args.run(args)
    return code


def test_the_picture_the_groups_and_the_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    assert twinkle_mesh("--dp", "2", "--pp", "2", "--tp", "2", "--nodes", "2", "--rank", "5", "--bytes", "1M") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "pp=2, dp=2, tp=2 · 8 ranks · on 2 nodes of 4" in shown.out
    assert "[5]  pp=1 dp=0 tp=1  data rank 0 of 2  node 1" in shown.out
    assert "  dp: [0, 2] [1, 3] [4, 6] [5, 7]\n" in shown.out
    assert "  collect: [4, 6]\n" in shown.out
    assert "tp      2       4            1  all-reduce            1.0 MiB           8.0 MiB\n" in shown.out
    assert shown.out.count("8 ranks") == 1


def test_experts_orders_and_many_groups(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--world-size 64 --tp 2 --fsdp -1 --ep 4 --order tp-fsdp-ep-dp-pp --sequence-parallel --device-type npu"
    assert twinkle_mesh(*sizes.split()) == 0
    shown = capsys.readouterr().out
    assert "fsdp=32, tp=2 · 64 ranks · data world size 32 · ep=4 · etp=2 · sequence parallel · npu" in shown
    assert "  tp: [0, 1] [2, 3] [4, 5] [6, 7] [8, 9] [10, 11] [12, 13] [14, 15] ... and 24 more\n" in shown
    assert "  ep: [0, 2, 4, 6] " in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--world-size 8 --tp 3", "twinkle mesh: tp_size=3 does not divide world_size=8; use 1, 2, 4 or 8\n"),
        ("--dp 2 --rank 2", "twinkle mesh: rank=2 is not in the mesh, whose ranks are [0, 1]\n"),
        ("--dp 4 --nodes 3", "twinkle mesh: nodes=3 does not divide the 4 ranks evenly; use 1, 2 or 4\n"),
        ("--dp 4 --bytes -1", "twinkle mesh: bytes=-1 must be at least 0; use 0\n"),
        (
            "--dp 8 --nodes 4,5",
            "twinkle mesh: --nodes 4,5 has 9 ranks, but the mesh has 8; use sizes that add up to 8\n",
        ),
        ("--vpp 2", "twinkle mesh: vpp_size=2 needs pp_size > 1, but pp_size=1; use vpp_size=1\n"),
    ],
)
def test_wrong_sizes_say_what_would_do_and_exit_2(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert twinkle_mesh(*arguments.split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", said)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--nodes two", "'two' is not a number of nodes such as 2, or the ranks on each such as 8,8,4"),
        ("--bytes 1.5X", "'1.5X' is not an amount such as 4096, 512M or 1.5G"),
        ("--bytes inf", "'inf' is not an amount such as 4096, 512M or 1.5G"),
        ("--bytes nan", "'nan' is not an amount such as 4096, 512M or 1.5G"),
        ("--bytes 1e308G", "'1e308G' is not an amount such as 4096, 512M or 1.5G"),
        ("--dp two", "invalid int value: 'two'"),
    ],
)
def test_arguments_that_are_not_numbers_exit_2(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        twinkle_mesh(*arguments.split())
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_tp_across_nodes_is_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert twinkle_mesh("--dp", "2", "--tp", "4", "--nodes", "3,5") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("twinkle mesh: warning: tp_size=4 crosses nodes: group [0, 1, 2, 3] lies on 2 of")
    assert "on 2 unequal nodes" in shown.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--fsdp 8 --dp 2 --nodes 2", "fsdp=8 crosses nodes: group [0, 2, 4, 6, 8, 10, 12, 14] lies on 2 nodes"),
        ("--fsdp 8 --dp 2 --nodes 2", "; --order fsdp-dp would keep them inside\n"),
        ("--fsdp 16 --nodes 2", "; --fsdp 8 --dp 2 --order fsdp-dp would keep them inside\n"),
        ("--cp 4 --dp 2 --order dp-cp --nodes 2", "; --order cp-dp would keep them inside\n"),
        ("--dp 8 --ep 8 --nodes 2", "ep=8 crosses nodes: group [0, 1, 2, 3, 4, 5, 6, 7] lies on 2 nodes"),
        ("--dp 8 --ep 8 --nodes 2", "; --ep 4 would keep them inside\n"),
    ],
)
def test_sharding_across_nodes_is_a_warning(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert twinkle_mesh(*arguments.split()) == 0
    shown = capsys.readouterr().err
    assert shown.startswith("twinkle mesh: warning: ") and said in shown


@pytest.mark.parametrize(
    "arguments",
    [
        "--fsdp 8 --dp 2 --nodes 2",
        "--fsdp 16 --nodes 2",
        "--cp 4 --dp 2 --order dp-cp --nodes 2",
        "--dp 8 --ep 8 --nodes 2",
    ],
)
def test_what_the_warning_says_keeps_the_groups_inside(arguments: str, capsys: pytest.CaptureFixture[str]) -> None:
    twinkle_mesh(*arguments.split())
    mend = capsys.readouterr().err.partition("; ")[2].removesuffix(" would keep them inside\n").split()
    assert twinkle_mesh(*arguments.split(), *mend) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("width", [30, 60, 90])
def test_no_line_is_wider_than_asked(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert twinkle_mesh("--dp", "8", "--tp", "8", "--ep", "4", "--nodes", "8", "--width", str(width)) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width
    assert twinkle_mesh("--dp", "8", "--tp", "8", "--width", "4") == 2
    assert "width=4 is too narrow for this mesh" in capsys.readouterr().err


def test_the_picture_as_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mesh.svg"
    assert twinkle_mesh("--dp", "2", "--ranks-per-node", "1", "--svg", str(file)) == 0
    assert file.read_text(encoding="utf-8").startswith("<svg ")
    assert twinkle_mesh("--dp", "2", "--svg", str(tmp_path / "no" / "mesh.svg")) == 1
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_a_terminal_gets_colours(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert twinkle_mesh("--dp", "2", "--tp", "2", "--nodes", "2", "--rank", "3") == 0
    assert "\x1b[1;7;33m[3]" in capsys.readouterr().out
