"""The public suite of twinkle-remote over Ray: fifteen workers on a cluster of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from twinkle_remote.conformance import CHECKS

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

pytestmark = pytest.mark.long

SOURCE = """
    import sys
    import traceback

    from twinkle_mesh import DeviceGroup
    from twinkle_ray.by_node import choice
    from twinkle_remote import session
    from twinkle_remote.conformance import SIZES, Harness, checks_for

    if sys.argv[2] == "in a tree":  # each rank of a group has an agent, and two agents stand below each
        vars(choice).update(FAN_OUT=2, RANKS_OF_AGENT=1)
    options = {"calls": "direct" if sys.argv[2] == "direct" else "by_node"}
    groups = [DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]
    with session("ray", groups=groups, **options):
        harness = Harness("ray", {size: f"of-{size}" for size in SIZES}, sys.argv[1], options)
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
@pytest.mark.parametrize("calls", ["direct", "in a tree"])
def test_conformance(program: Callable[..., Any], tmp_path: Any, calls: str) -> None:
    out = program(SOURCE, str(tmp_path), calls, OMP_NUM_THREADS="1").finish(timeout=290)
    passed = {line.removeprefix("passed: ") for line in out.splitlines() if line.startswith("passed: ")}
    assert passed == {check.__name__ for check in CHECKS}, out
