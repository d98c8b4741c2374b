"""Each distribution is built, installs alone with what it declares, imports alone, and stays light."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.conftest import Workspace

pytestmark = pytest.mark.packaging

THIRD_PARTY = {
    "twinkle-mesh": set(),
    "twinkle-remote": set(),
    "twinkle-data": {"numpy", "torch"},
    "twinkle-ray": {"numpy", "ray", "torch"},
    "twinkle-all": set(),
}
SIBLINGS = {
    "twinkle-mesh": set(),
    "twinkle-remote": {"twinkle-mesh"},
    "twinkle-data": {"twinkle-mesh", "twinkle-remote"},
    "twinkle-ray": {"twinkle-mesh", "twinkle-remote"},
    "twinkle-all": {"twinkle-mesh", "twinkle-remote", "twinkle-data", "twinkle-ray"},
}
LIGHT = ("twinkle-all", "twinkle-mesh", "twinkle-remote")
HEAVY = {"torch", "ray", "numpy"}
NAMES = sorted(THIRD_PARTY)
MODULES = {name: name.replace("-", "_") for name in NAMES} | {"twinkle-all": "twinkle"}


def _metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return archive.read(name).decode()


@pytest.mark.parametrize("name", NAMES)
def test_wheel_and_sdist_hold_what_they_should(workspace: Workspace, name: str) -> None:
    module = MODULES[name]
    with zipfile.ZipFile(workspace.wheel(name)) as archive:
        inside = archive.namelist()
    assert f"{module}/py.typed" in inside
    assert any(entry.endswith("licenses/LICENSE") for entry in inside)
    assert {entry.split("/")[0] for entry in inside if ".dist-info" not in entry} == {module}
    (sdist,) = workspace.dist.glob(f"{name.replace('-', '_')}-[0-9]*.tar.gz")
    with tarfile.open(sdist) as archive:
        files = {member.name.split("/", 1)[1] for member in archive.getmembers()}
    assert {"README.md", "CHANGELOG.md", "LICENSE", f"src/{module}/py.typed"} <= files


@pytest.mark.parametrize("name", NAMES)
def test_dependencies_are_those_of_the_contract_and_siblings_are_bounded(workspace: Workspace, name: str) -> None:
    metadata = _metadata(workspace.wheel(name))
    required = [line for line in re.findall(r"^Requires-Dist: (.+)$", metadata, re.MULTILINE) if "extra ==" not in line]
    names = {re.match(r"[\w-]+", line).group() for line in required}  # type: ignore[union-attr]  # each begins so
    assert names == THIRD_PARTY[name] | SIBLINGS[name]
    for line in required:
        if line.startswith("twinkle"):
            assert re.search(r"<0\.2", line), line
            assert re.search(r">=0\.1", line), line
    assert "Requires-Python: >=3.11" in metadata


@pytest.mark.parametrize("name", NAMES)
def test_installs_and_imports_alone(workspace: Workspace, name: str, tmp_path: Path) -> None:
    python = workspace.environment(tmp_path / "env")
    workspace.install(python, workspace.wheel(name))
    module = MODULES[name]
    program = f"import sys, json, {module}; print(json.dumps([{module}.__file__, sorted(sys.modules)]))"
    where, loaded = json.loads(workspace.run(python, "-I", "-c", program))
    assert str(tmp_path) in where
    assert name not in LIGHT or not HEAVY & set(loaded)
    listed = workspace.run(workspace.uv, "pip", "list", "--quiet", "--format", "json", "--python", python)
    ours = {row["name"] for row in json.loads(listed) if row["name"].startswith("twinkle")}
    assert ours == SIBLINGS[name] | {name}
    if not THIRD_PARTY[name] and not any(THIRD_PARTY[sibling] for sibling in SIBLINGS[name]):
        assert len(json.loads(listed)) == len(ours)
    every_name = f"import {module}; [getattr({module}, name) for name in {module}.__all__]"
    workspace.run(python, "-I", "-W", "error", "-c", every_name)


def test_plain_pip_installs_one_package_from_a_checkout(workspace: Workspace, tmp_path: Path) -> None:
    python = workspace.environment(tmp_path / "env", seed=True)
    source = workspace.root / "packages" / "twinkle-mesh"
    workspace.run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", source, cwd=tmp_path)
    program = "from twinkle_mesh import DeviceMesh; print(DeviceMesh.from_sizes(dp_size=2, tp_size=2).world_size)"
    assert workspace.run(python, "-I", "-c", program, cwd=tmp_path).strip() == "4"


def test_plain_pip_installs_all_from_a_checkout(workspace: Workspace, tmp_path: Path) -> None:
    python = workspace.environment(tmp_path / "env", seed=True)
    heavy = sorted(HEAVY)
    workspace.install(python, *heavy)
    sources = [*sorted((workspace.root / "packages").iterdir()), workspace.root]
    workspace.run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *sources, cwd=tmp_path)
    assert workspace.run(python, "-m", "pip", "check", cwd=tmp_path)
    version = workspace.run(tmp_path / "env" / "bin" / "twinkle", "--version", cwd=tmp_path)
    assert version.startswith("twinkle 0.")
