"""Lines that a worker prints for the driver: each in one write, its label, and a token after its last line."""

from __future__ import annotations

import sys
from importlib import import_module

from twinkle_ray.telemetry.whole_lines import WholeLines


def print_by_line() -> None:
    """Have each line leave this worker in one write."""
    sys.stdout, sys.stderr = WholeLines(sys.stdout), WholeLines(sys.stderr)


def name_output(label: str) -> None:
    """Label the lines that this worker prints from now on."""
    marker = import_module("ray._private.ray_constants").LOG_PREFIX_ACTOR_NAME
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, WholeLines):
            stream.end_line()  # Ray looks for the marker where a line begins
        print(f"{marker}{label}", file=stream, flush=True)


def end_output(token: str) -> None:
    """Print a token after everything that this worker has printed."""
    for stream in (sys.stdout, sys.stderr):
        print(token, file=stream, flush=True)
