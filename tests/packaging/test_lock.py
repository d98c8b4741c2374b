"""The lock names no address, so that it serves behind any index or mirror."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_lock_names_no_host() -> None:
    text = (ROOT / "uv.lock").read_text()
    assert not re.findall(r"\w+://[^\s\"]+", text)
    sources = {package["source"].get("registry", "wheels") for package in tomllib.loads(text)["package"]}
    assert sources == {"wheels"}


def test_every_locked_file_has_a_hash() -> None:
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    files = [file for package in packages for file in [*package.get("wheels", []), package.get("sdist")] if file]
    assert files
    assert all(file["hash"].startswith("sha256:") and "/" not in file["path"] for file in files)
