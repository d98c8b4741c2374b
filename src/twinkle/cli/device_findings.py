"""Findings of `twinkle doctor --gpu`: one small check of each path on the devices that are there."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from twinkle.cli.device_probes import read_reports
from twinkle.cli.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NOT_TRIED = "not tried: "


class CheckedPath(NamedTuple):
    """A path that is checked.

    Attributes:
        what: Its name.
        probe: The probe that checks it.
        remedy: What to do where it fails.
        needs: Modules without which it cannot be tried.
    """

    what: str
    probe: str
    remedy: str
    needs: tuple[str, ...] = ()


PATHS = (
    CheckedPath(
        "devices", "group", "nvidia-smi must list each device, CUDA_VISIBLE_DEVICES must not hide it, and torch must "
        "be built for its driver: python -c 'import torch; torch.ones(1, device=\"cuda\")'", ("torch", "ray"),
    ),
    CheckedPath(
        "all-reduce", "group", "NCCL_DEBUG=INFO shows where NCCL stops; NCCL_P2P_DISABLE=1 or NCCL_SHM_DISABLE=1 leave "
        "a broken way out; a container needs --shm-size=1g or --ipc=host",
    ),
    CheckedPath("FSDP2", "group", "the reduction above must work; use torch 2.6 or newer"),
    CheckedPath(
        "hand-over", "hand-over", "a container needs --ipc=host, and torch memory that can be shared: "
        "PYTORCH_CUDA_ALLOC_CONF without expandable_segments; weights go over the host meanwhile "
        '(WeightSync(transport="shared"))',
    ),
    CheckedPath(
        "vLLM", "vllm", "its own start must work: vllm serve with a small model; it pins torch and transformers",
        ("vllm", "transformers"),
    ),
    CheckedPath("weights to vLLM", "vllm", "report it, with the output of --verbose", ("vllm", "transformers")),
)  # fmt: skip

SECONDS = {"group": 180.0, "hand-over": 120.0, "vllm": 300.0}


def device_findings(*, on_host: bool = False, verbose: bool = False) -> Iterator[Finding]:
    """Check each path, each probe in a process of its own that is ended when it takes too long.

    Args:
        on_host: Run the same paths on this host's CPUs.
        verbose: Print the output of each probe, too.
    """
    count, reason, remedy = (2, "", "") if on_host else _devices()
    if reason:
        for number, path in enumerate(PATHS):
            yield Finding(f"gpu: {path.what}", f"{_NOT_TRIED}{reason}", "" if number else remedy)
        return
    device = "cpu" if on_host else "cuda"
    for probe in dict.fromkeys(path.probe for path in PATHS):
        paths = [path for path in PATHS if path.probe == probe]
        missing = [name for name in paths[0].needs if find_spec(name) is None]
        if missing:
            for path in paths:
                text = f"{_NOT_TRIED}{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
                yield Finding(f"{_head(on_host)}: {path.what}", text)
            continue
        yield from _judged(paths, _run([probe, device, str(count)], SECONDS[probe], verbose), _head(on_host))


def markdown_row(findings: Sequence[Finding], *, on_host: bool) -> str:
    """The row of the README's table "Seen on hardware": on what, what works, and what does not or was not tried."""
    by_kind: dict[str, list[str]] = {"works": [], "fails": [], "not tried": []}
    for one in findings:
        kind = "not tried" if one.found.startswith(_NOT_TRIED) else "fails" if one.remedy else "works"
        by_kind[kind].append(one.what.partition(": ")[2])
    parts = [f"{', '.join(names)}{'' if kind == 'works' else f': {kind}'}" for kind, names in by_kind.items() if names]
    command = f"twinkle doctor {'--on-host' if on_host else '--gpu'}"
    return f"| {_hardware(on_host)} | {'; '.join(parts)} | `{command}` |"


def _hardware(on_host: bool) -> str:
    """The hardware that the paths were tried on: the names of the devices, or of the host's processor."""
    if on_host:
        return f"{os.cpu_count()} CPUs ({platform.machine()})"
    try:
        import torch

        names = Counter(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    except (ImportError, RuntimeError, AssertionError):
        names = Counter()
    return ", ".join(f"{count} x {name}" for name, count in names.items()) or "GPUs: none here"


def _head(on_host: bool) -> str:
    return "host" if on_host else "gpu"


def _devices() -> tuple[int, str, str]:
    """The number of devices; else why there is none, and what to do."""
    try:
        import torch
    except ImportError:
        return 0, "torch is not installed", "pip install torch"
    if torch.version.cuda is None:
        return 0, f"torch {torch.__version__} is built without CUDA", "install a torch with CUDA"
    count = torch.cuda.device_count()
    if count:
        return count, "", ""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    hides = f"; CUDA_VISIBLE_DEVICES={hidden!r} may hide it" if hidden is not None else ""
    return (
        0,
        "torch sees no GPU",
        f"nvidia-smi shows whether there is one and a driver{hides}; --on-host tries the paths",
    )


def _judged(paths: Sequence[CheckedPath], outcome: tuple[str, str], head: str) -> Iterator[Finding]:
    """The findings of one probe's paths, from its output and from how it ended."""
    output, end = outcome
    found = {one["what"]: one for one in read_reports(output)}
    end = found["whole"]["found"] if "whole" in found else end
    failed = ""
    for path in paths:
        one = found.get(path.what)
        if one is not None:
            yield Finding(f"{head}: {path.what}", one["found"], "" if one["well"] else path.remedy)
            failed = failed or ("" if one["well"] else path.what)
        elif failed:
            yield Finding(f"{head}: {path.what}", f"{_NOT_TRIED}{failed} failed")
        else:
            yield Finding(f"{head}: {path.what}", end, path.remedy)
            failed = path.what


def _run(arguments: Sequence[str], seconds: float, verbose: bool) -> tuple[str, str]:
    """The output of a probe, and how it ended, for paths of which it has reported nothing."""
    command = [sys.executable, "-m", "twinkle.cli.device_probes", *arguments]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, errors="replace"
    )
    try:
        output, _ = process.communicate(timeout=seconds)
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        end = f"the check ended with {process.returncode}: {last.strip()[:200]}"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the processes that it has started, too
        output, _ = process.communicate()
        end = f"the check did not end within {seconds:g} s"
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    if verbose:
        print(output)
    return output, end
