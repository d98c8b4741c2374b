"""The public suite of twinkle-remote over Ray: fifteen workers on a cluster of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_remote.conformance import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

SOURCE = """
    import sys
    import traceback

    from twinkle_mesh import DeviceGroup
    from twinkle_remote import session
    from twinkle_remote.conformance import SIZES, Harness, checks_for

    with session("ray", groups=[DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]):
        harness = Harness("ray", {size: f"of-{size}" for size in SIZES}, sys.argv[1])
        for check in checks_for(harness):
            try:
                check(harness)
            except Exception:
                traceback.print_exc()
                print("failed:", check.__name__)
            else:
                print("passed:", check.__name__)
"""


@pytest.mark.ray
def test_conformance(program: Callable[..., Any], tmp_path: Any) -> None:
    out = program(SOURCE, str(tmp_path), OMP_NUM_THREADS="1").finish(timeout=290)
    passed = {line.removeprefix("passed: ") for line in out.splitlines() if line.startswith("passed: ")}
    assert passed == {check.__name__ for check in CHECKS}, out
