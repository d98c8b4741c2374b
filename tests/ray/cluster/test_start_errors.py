"""What is told of a cluster that did not start."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

from twinkle_ray.cluster.starting import memory_limits, start_errors

if TYPE_CHECKING:
    from pathlib import Path

RAYLET = """
[2026-07-29 05:06:36,100 I 27 27] (raylet) main.cc:1: Setting cluster ID
[2026-07-29 05:06:36,200 E 27 27] (raylet) main.cc:2: the port is taken
[2026-07-29 05:06:36,300 C 27 27] (raylet) main.cc:3: Check failed
    /site-packages/ray/raylet(+0xff770a) [0x55] failed()
"""


def test_the_last_errors_of_each_process(tmp_path: Path) -> None:
    assert start_errors(tmp_path) == ""
    logs = tmp_path / "r" / "session_2026-07-29" / "logs"
    logs.mkdir(parents=True)
    (logs / "raylet.out").write_text(RAYLET)
    (logs / "gcs_server.err").write_text("terminate called after throwing 'std::bad_alloc'\n")
    (logs / "worker.err").write_text("an error of nobody's\n")
    assert start_errors(tmp_path).splitlines() == [
        "",
        "its processes wrote:",
        "  gcs_server.err: terminate called after throwing 'std::bad_alloc'",
        "  raylet.out: [2026-07-29 05:06:36,200 E 27 27] (raylet) main.cc:2: the port is taken",
        "  raylet.out: [2026-07-29 05:06:36,300 C 27 27] (raylet) main.cc:3: Check failed",
    ]


def test_limits_are_named_where_there_are_some() -> None:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (1 << 45, before[1]))
    try:
        assert f"; RLIMIT_AS is {1 << 45} bytes of address space" in memory_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert before[0] != resource.RLIM_INFINITY or "RLIMIT_AS" not in memory_limits()
