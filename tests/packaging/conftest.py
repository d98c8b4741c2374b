"""Wheels and source distributions of the workspace, built once, and clean environments to install them into."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Workspace:
    """The built distributions.

    Attributes:
        root: The checkout.
        dist: Folder of wheels and source distributions.
        uv: The workspace's uv.
        locked: Requirements file with the locked versions of all third-party packages.
    """

    root: Path
    dist: Path
    uv: str
    locked: Path

    def run(self, *command: str | Path, cwd: Path | None = None, limit: float = 300.0) -> str:
        """Run a command that must succeed; its output."""
        env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd or self.dist,
            env=env | {"UV_NO_PROGRESS": "1"},
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
        assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def wheel(self, name: str) -> Path:
        """The wheel of a distribution."""
        (found,) = self.dist.glob(f"{name.replace('-', '_')}-*.whl")
        return found

    def environment(self, where: Path, *, seed: bool = False) -> Path:
        """A clean environment; its Python."""
        self.run(self.uv, "venv", "--quiet", "--python", sys.executable, *(["--seed"] if seed else []), where)
        return where / "bin" / "python"

    def install(self, python: Path, *what: str | Path, exact: bool = False) -> None:
        """Install with what it declares, third-party packages at their locked versions; if exact, all else goes."""
        offer: list[str | Path] = ["--find-links", self.dist, "--constraints", self.locked]
        offer += ["--exact"] if exact else []
        self.run(self.uv, "pip", "install", "--quiet", "--python", python, *offer, *what)
        self.run(self.uv, "pip", "check", "--quiet", "--python", python)

    def installed(self, python: Path) -> set[str]:
        """The names of what an environment has."""
        listed = self.run(self.uv, "pip", "list", "--quiet", "--format", "json", "--python", python)
        return {row["name"] for row in json.loads(listed)}


@pytest.fixture(scope="session")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    uv = os.environ.get("TWINKLE_UV") or next(map(str, (ROOT / ".tools").glob("uv-*/bin/uv")))
    dist = tmp_path_factory.mktemp("dist")
    built = Workspace(ROOT, dist, uv, dist / "locked.txt")
    built.run(uv, "build", "--quiet", "--all-packages", "--out-dir", dist, cwd=ROOT)
    export = [uv, "export", "--quiet", "--locked", "--all-packages", "--no-emit-workspace", "--no-hashes", "--no-dev"]
    built.run(*export, "--output-file", built.locked, cwd=ROOT)
    return built
