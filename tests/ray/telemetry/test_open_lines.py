"""A line that a worker has begun and not ended stays as it is beside what is printed for the driver."""

from __future__ import annotations

import io

from twinkle_ray.telemetry.logs import WorkerLogs
from twinkle_ray.telemetry.whole_lines import WholeLines


def test_a_line_is_ended_only_where_one_was_begun() -> None:
    stream = io.StringIO()
    lines = WholeLines(stream)
    lines.end_line()
    lines.write("whole\n")
    lines.end_line()
    lines.write("begun")
    lines.end_line()
    lines.write("shown")
    lines.flush()
    lines.end_line()
    lines.end_line()
    assert stream.getvalue() == "whole\nbegun\nshown\n"


def test_a_token_is_taken_off_the_line_that_it_ends() -> None:
    logs = WorkerLogs()
    logs._tokens["token"] = 2
    logs.add_labels({("host", "1"): "g[0/1]"})
    shown: list[tuple[str, str]] = []
    logs._fold.add = lambda label, line, is_error: shown.append((label, line))  # type: ignore[method-assign]  # the test notes what is shown
    logs._take({"ip": "host", "pid": "1", "is_err": False, "lines": ["no endtoken", "token"]})
    logs.close()
    assert shown == [("g[0/1]", "no end")] and logs._tokens["token"] == 0
