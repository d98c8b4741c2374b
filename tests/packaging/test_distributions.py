"""Each distribution is built, installs alone with what it declares, imports alone, and stays light."""

from __future__ import annotations

import json
import re
import tarfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.packaging.conftest import Workspace

pytestmark = pytest.mark.packaging

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
THIRD_PARTY = {
    "twinkle-mesh": set(),
    "twinkle-remote": set(),
    "twinkle-http": {"msgspec", "urllib3", "uvicorn"},
    "twinkle-data": {"numpy", "torch"},
    "twinkle-ray": {"numpy", "ray", "torch"},
    "twinkle-engines": {"numpy", "torch"},
    "twinkle-all": set(),
}
SIBLINGS = {
    "twinkle-mesh": set(),
    "twinkle-remote": {"twinkle-mesh"},
    "twinkle-data": {"twinkle-mesh", "twinkle-remote"},
    "twinkle-ray": {"twinkle-mesh", "twinkle-remote"},
    "twinkle-http": {"twinkle-mesh", "twinkle-remote"},
    "twinkle-engines": {"twinkle-mesh", "twinkle-remote", "twinkle-data", "twinkle-ray"},
    "twinkle-all": {"twinkle-mesh", "twinkle-remote", "twinkle-data", "twinkle-ray", "twinkle-engines"},
}
LIGHT = ("twinkle-all", "twinkle-engines", "twinkle-http", "twinkle-mesh", "twinkle-remote")
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
    own = {"hatch_build.py"} if name == "twinkle-all" else set()
    beside = {"README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", "pyproject.toml", ".gitignore"} | own
    assert beside | {f"src/{module}/py.typed"} <= files
    known = rf"src/{module}/([a-z_]+/)*(\w+\.py|rollouts\.html|py\.typed)"
    assert {file for file in files - beside if not re.fullmatch(known, file)} == set()


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
def test_the_index_is_told_who_where_and_what_for(workspace: Workspace, name: str) -> None:
    head, text = _metadata(workspace.wheel(name)).split("\n\n", 1)
    urls = dict(re.findall(r"^Project-URL: (\w+), (https://\S+)$", head, re.MULTILINE))
    assert urls.keys() == {"Homepage", "Documentation", "Source", "Issues", "Changelog"}
    assert all(url.startswith(urls["Source"]) for url in urls.values())
    for version in ("3.11", "3.12", "3.13"):
        assert f"Classifier: Programming Language :: Python :: {version}\n" in head
    assert re.search(r"^Author: .+", head, re.MULTILINE)
    assert re.search(r"^Keywords: .+,.+", head, re.MULTILINE)
    links = re.findall(r"(?:\]\(|\b(?:src|srcset|href)=\")([^)\"]+)", text)
    assert links or name != "twinkle-all"
    for link in links:
        ours = link.startswith((f"{urls['Source']}/blob/main/", f"{urls['Source']}/raw/main/"))
        assert ours or f"]({link})" in README, f"{link}: a link to a file leads into the source"


def _extras(workspace: Workspace, name: str) -> dict[str, set[str]]:
    """What each extra of a distribution requires, with extras of its own."""
    metadata = _metadata(workspace.wheel(name))
    brought: dict[str, set[str]] = {
        extra: set() for extra in re.findall(r"^Provides-Extra: (\w+)$", metadata, re.MULTILINE)
    }
    for required, extra in re.findall(
        r"^Requires-Dist: ([\w-]+(?:\[\w+\])?).*extra == '(\w+)'$", metadata, re.MULTILINE
    ):
        brought[extra].add(required)
    return brought


def test_extras_bring_what_their_names_say(workspace: Workspace) -> None:
    extras = {"hf": {"transformers", "peft", "safetensors"}, "vllm": {"vllm"}, "agents": {"twinkle-http"}}
    assert _extras(workspace, "twinkle-engines") == extras
    brought = _extras(workspace, "twinkle-all")
    assert brought.keys() == {"hf", "vllm", "http", "agents", "demo", "all"}
    assert brought["hf"] == {"twinkle-engines[hf]"}
    assert brought["vllm"] == {"twinkle-engines[vllm]"}
    assert brought["http"] == {"twinkle-http"}
    assert brought["agents"] == {"twinkle-engines[agents]"}
    assert brought["demo"] == brought["hf"] | {"matplotlib", "rich", "tqdm"}
    assert brought["all"] == brought["demo"] | brought["http"] | brought["vllm"] | brought["agents"]


@pytest.fixture(scope="module")
def python(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of one environment, for one distribution after the other: Python compiles torch and Ray once in it."""
    return workspace.environment(tmp_path_factory.mktemp("alone") / "env")


# Each needs less than the one before.
@pytest.mark.parametrize("name", [*reversed(THIRD_PARTY)])
def test_installs_and_imports_alone(workspace: Workspace, name: str, python: Path) -> None:
    workspace.install(python, workspace.wheel(name), exact=True)
    module = MODULES[name]
    program = f"import sys, json, {module}; print(json.dumps([{module}.__file__, sorted(sys.modules)]))"
    where, loaded = json.loads(workspace.run(python, "-I", "-c", program))
    assert Path(where).is_relative_to(python.parents[1])
    assert name not in LIGHT or not HEAVY & set(loaded)
    found = workspace.installed(python)
    assert {one for one in found if one.startswith("twinkle")} == SIBLINGS[name] | {name}
    declared = set[str]().union(*(THIRD_PARTY[one] for one in (name, *SIBLINGS[name])))
    assert declared <= found and HEAVY & found == HEAVY & declared
    assert declared or found == SIBLINGS[name] | {name}
    every_name = f"import {module}; [getattr({module}, name) for name in {module}.__all__]"
    workspace.run(python, "-I", "-W", "error", "-c", every_name)
