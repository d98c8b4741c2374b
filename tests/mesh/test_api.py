from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import twinkle_mesh
import twinkle_mesh.recipes


@pytest.mark.parametrize("module", ["twinkle_mesh", "twinkle_mesh.recipes"])
def test_the_public_names_are_sorted_and_there(module: str) -> None:
    package = importlib.import_module(module)
    assert package.__all__ == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in package.__all__)
    assert set(package.__all__) <= set(dir(package))
    assert package.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        getattr(twinkle_mesh, "nothing")  # noqa: B009  a type checker refuses the plain form


def test_the_import_is_light() -> None:
    code = "import sys, twinkle_mesh; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"torch", "numpy", "ray", "rich", "typing", "dataclasses", "re", "json", "warnings"}.isdisjoint(
        set(loaded.stdout.split()) - set(_bare())
    )


def _bare() -> list[str]:
    """List what starting Python loads by itself."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout.split()
