from __future__ import annotations

import subprocess
import sys
from importlib import import_module


def test_the_public_names_are_there() -> None:
    package = import_module("twinkle_mesh")
    assert package.__all__ == [
        *("DDPConfig", "DeviceGroup", "DeviceMesh", "FSDP2Config", "MegatronFSDPConfig", "ask_for_rank"),
        *("balanced_slice", "create_device_mesh", "current_rank", "launched", "load_lazily", "use_rank"),
    ]
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_the_package_needs_python_alone() -> None:
    code = "import sys; from twinkle_mesh import *; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert {"torch", "numpy", "ray", "rich"}.isdisjoint(loaded.stdout.split())
