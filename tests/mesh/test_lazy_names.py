"""Packages whose names are loaded on first use: what the program finds is what a type checker reads."""

from __future__ import annotations

import ast
import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def write_package(folder: Path, name: str, imports: str) -> None:
    (folder / name).mkdir()
    text = f"TYPE_CHECKING = False\nif TYPE_CHECKING:\n{imports}"
    text += "else:\n    from twinkle_mesh import load_lazily\n"
    text += "    __all__, __getattr__, __dir__ = load_lazily(__name__)\n"
    (folder / name / "__init__.py").write_text(text)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    imports = (
        "    from colorsys import rgb_to_hsv as rgb_to_hsv\n    from this_is_not_there import anything as anything\n"
    )
    write_package(tmp_path, "made", imports)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("made")
    sys.modules.pop("made")


def test_a_name_is_loaded_on_first_use_and_then_held(package: ModuleType) -> None:
    assert "rgb_to_hsv" not in vars(package)
    assert package.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert vars(package)["rgb_to_hsv"] is import_module("colorsys").rgb_to_hsv


def test_names_are_listed_before_they_are_loaded(package: ModuleType) -> None:
    assert package.__all__ == ["anything", "rgb_to_hsv"]
    assert {"anything", "rgb_to_hsv", "__name__"} <= set(dir(package))


def test_a_name_that_its_module_bears_too_stays_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    imports = (
        "    from bears_names.more import other as other\n    from bears_names.rows import rows as rows  # noqa: F401\n"
    )
    write_package(tmp_path, "bears_names", imports)
    folder = tmp_path / "bears_names"
    (folder / "rows.py").write_text("def rows(): return 1\n")
    (folder / "more.py").write_text("import bears_names.rows\ndef other(): return 2\n")
    monkeypatch.syspath_prepend(tmp_path)
    package = import_module("bears_names")
    assert (package.other(), package.rows()) == (2, 1)
    assert import_module("bears_names.more").__name__ == "bears_names.more"


def test_an_unknown_name_is_an_error_with_the_names_that_there_are(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="rgb_to_hsv"):
        package.hsv_to_rgb  # noqa: B018  the error is what is tested


def test_a_module_that_is_missing_is_no_missing_name(package: ModuleType) -> None:
    with pytest.raises(ModuleNotFoundError, match="this_is_not_there"):
        package.anything  # noqa: B018  the error is what is tested


@pytest.mark.parametrize(
    "name",
    [
        *("twinkle", "twinkle.engines", "twinkle_engines", "twinkle_http", "twinkle_mesh", "twinkle_ray"),
        *("twinkle_remote", "twinkle_remote.backends.support", "twinkle_remote.protocol", "twinkle_remote.rows"),
    ],
)
def test_a_type_checker_reads_the_names_that_the_program_finds(name: str) -> None:
    package = import_module(name)
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    read = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("__future__", "typing")
        for alias in node.names
    }
    assert set(package.__all__) == read - ({"load_lazily"} - {"twinkle_mesh": {"load_lazily"}}.get(name, set()))
    for one in package.__all__:
        assert getattr(package, one) is vars(package)[one]


def test_a_package_in_an_archive_has_its_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_package(tmp_path, "zipped", "    from colorsys import rgb_to_hsv as rgb_to_hsv\n")
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path, "zipped")
    shutil.rmtree(tmp_path / "zipped")
    monkeypatch.syspath_prepend(archive)
    assert import_module("zipped").rgb_to_hsv(0, 0, 0) == (0, 0, 0)


@pytest.mark.parametrize("name", ["twinkle_remote", "twinkle_remote.rows"])
def test_a_class_of_the_program_that_names_a_package_is_sent_by_value(name: str) -> None:
    package, cloudpickle = import_module(name), import_module("ray.cloudpickle")
    space: dict[str, Any] = {"package": package, "__name__": "__main__"}
    exec("def found():\n    return package", space)
    assert cloudpickle.loads(cloudpickle.dumps(space["found"]))() is package
