"""`twinkle doctor --gpu`: what it says without devices, with substitutes of devices, and on the host."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from twinkle.cli import device_findings as findings
from twinkle.cli import main
from twinkle.cli.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERY = ["devices", "all-reduce", "FSDP2", "hand-over", "vLLM", "weights to vLLM"]


def test_without_devices_each_path_is_told_as_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert main(["doctor", "--gpu"]) == 1
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if " gpu: " in line]
    assert [line[2:].split("  ")[0] for line in lines] == [f"gpu: {name}" for name in EVERY]
    assert all("not tried: torch" in line for line in lines) and "--on-host" in out


def line(what: str, found: str, well: bool) -> str:
    return f"noise of a library\ntwinkle-probe {json.dumps({'what': what, 'found': found, 'well': well})}\n"


OUTCOMES = {
    "group": (line("devices", "2 ranks", True) + line("all-reduce", "RuntimeError: NCCL error", False), "ended with 0"),
    "hand-over": ("", "the check did not end within 120 s"),
    "vllm": (line("vLLM", "wrote 8 tokens", True) + line("weights to vLLM", "agree", True), "ended with 0"),
}


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """A host with two devices by name, whose probes have told what they have."""
    asked: list[Sequence[str]] = []

    def run(arguments: Sequence[str], seconds: float, verbose: bool) -> tuple[str, str]:
        asked.append(arguments)
        return OUTCOMES[arguments[0]]

    monkeypatch.setattr(findings, "_devices", lambda: (2, "", ""))
    monkeypatch.setattr(findings, "_run", run)
    return asked


@pytest.mark.parametrize("has_vllm", [True, False])
def test_on_devices_what_fails_has_a_remedy_and_what_follows_is_not_tried(
    two_devices: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, has_vllm: bool
) -> None:
    monkeypatch.setattr(findings, "find_spec", lambda name: object() if has_vllm or name != "vllm" else None)
    told = {one.what.removeprefix("gpu: "): one for one in findings.device_findings()}
    assert list(told) == EVERY
    assert two_devices[0] == ["group", "cuda", "2"]
    assert told["devices"].found == "2 ranks" and not told["devices"].remedy
    assert "NCCL error" in told["all-reduce"].found and "NCCL_DEBUG" in told["all-reduce"].remedy
    assert told["FSDP2"].found == "not tried: all-reduce failed"
    assert "did not end" in told["hand-over"].found and "--ipc=host" in told["hand-over"].remedy
    if has_vllm:
        assert told["weights to vLLM"].found == "agree" and not told["weights to vLLM"].remedy
    else:
        assert told["vLLM"].found == told["weights to vLLM"].found == "not tried: vllm is not installed"
        assert not told["vLLM"].remedy


def test_a_probe_that_ends_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    output, end = findings._run(["no such probe", "cpu", "2"], 60.0, False)
    (one,) = findings._judged(findings.PATHS[3:4], (output, end), "gpu")
    assert "KeyError" in one.found and one.remedy
    output, end = findings._run(["hand-over", "cpu", "2"], 0.05, False)
    assert "did not end within 0.05 s" in end


def test_the_hand_over_works_on_the_host() -> None:
    output, end = findings._run(["hand-over", "cpu", "2"], 120.0, False)
    (one,) = findings._judged(findings.PATHS[3:4], (output, end), "host")
    assert one.found == "by a memory file" and not one.remedy, output


@pytest.mark.ray
def test_a_group_reduces_and_trains_on_the_host() -> None:
    output, end = findings._run(["group", "cpu", "2"], 180.0, False)
    told = list(findings._judged(findings.PATHS[:3], (output, end), "host"))
    assert not any(one.remedy for one in told), output
    assert "2 ranks over Gloo" in told[1].found and "the loss falls" in told[2].found


def test_the_row_for_the_table_says_what_works_and_what_does_not(
    two_devices: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import torch

    monkeypatch.setattr(findings, "find_spec", lambda name: None if name == "vllm" else object())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "NVIDIA H100")
    assert main(["doctor", "--gpu", "--markdown"]) == 1
    assert (
        "\n| 2 x NVIDIA H100 | devices; all-reduce, hand-over: fails; FSDP2, vLLM, weights to vLLM: not tried "
        "| `twinkle doctor --gpu` |\n"
    ) in capsys.readouterr().out
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    row = findings.markdown_row([Finding("gpu: devices", "not tried: torch sees no GPU")], on_host=False)
    assert row == "| GPUs: none here | devices: not tried | `twinkle doctor --gpu` |"


@pytest.mark.parametrize("hidden", ["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-7d5e", "9", ""])
def test_devices_that_are_hidden_by_any_name_are_told(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    found = list(findings.device_findings())
    assert f"CUDA_VISIBLE_DEVICES={hidden!r} may hide it" in found[0].remedy
