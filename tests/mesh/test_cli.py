from __future__ import annotations

import argparse

import pytest

from twinkle.cli.mesh import add_parser


def twinkle_mesh(*arguments: str) -> int:
    parser = argparse.ArgumentParser(prog="twinkle")
    add_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["mesh", *arguments])
    code: int = args.run(args)
    return code


def test_the_picture_and_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert twinkle_mesh("--dp", "2", "--pp", "2", "--tp", "2", "--rank", "5") == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "pp=2, dp=2, tp=2 · 8 ranks · data world size 2" in shown.out
    assert "[5] pp=1 dp=0 tp=1" in shown.out
    assert "  dp: [0, 2] [1, 3] [4, 6] [5, 7]\n" in shown.out
    assert "  collect: [4, 6]\n" in shown.out


def test_experts_orders_and_many_groups(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = "--world-size 64 --tp 2 --fsdp -1 --ep 4 --order tp-fsdp-ep-dp-pp --sequence-parallel --device-type npu"
    assert twinkle_mesh(*sizes.split()) == 0
    shown = capsys.readouterr().out
    assert "fsdp=32, tp=2 · 64 ranks · data world size 32 · ep_size=4 · sequence_parallel=True · npu" in shown
    assert "  tp: [0, 1] [2, 3] [4, 5] [6, 7] [8, 9] [10, 11] [12, 13] [14, 15] ... and 24 more\n" in shown
    assert "  ep: [0, 2, 4, 6] " in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--world-size 8 --tp 3", "twinkle mesh: tp_size=3 does not divide world_size=8; use 1, 2, 4 or 8\n"),
        ("--dp 2 --rank 2", "twinkle mesh: rank=2 is not in the mesh, whose ranks are [0, 1]\n"),
        ("--vpp 2", "twinkle mesh: vpp_size=2 needs pp_size > 1, but pp_size=1; use vpp_size=1\n"),
    ],
)
def test_wrong_sizes_say_what_would_do_and_exit_2(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert twinkle_mesh(*arguments.split()) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", said)
