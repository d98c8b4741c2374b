"""The backend of the page howto/extending.md, as its reader follows it: a module, an entry point and a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "extending.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_a_stranger_s_backend_is_found_and_passes_the_checks(tmp_path: Path) -> None:
    (module,), (program,) = blocks("python backend"), blocks("python checks")
    (registered,) = blocks("toml")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "backend.py").write_text(module, encoding="utf-8")
    installed = tmp_path / "my_package-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n", encoding="utf-8")
    entries = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in found.items())
        for group, found in tomllib.loads(registered)["project"]["entry-points"].items()
    ]
    (installed / "entry_points.txt").write_text("".join(entries), encoding="utf-8")
    (tmp_path / "program.py").write_text(program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"[0-9]+ of [0-9]+ checks are for this backend", done.stdout)
