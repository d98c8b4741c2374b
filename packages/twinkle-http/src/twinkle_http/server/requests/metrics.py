"""The metrics of a server in the text format of Prometheus, version 0.0.4."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from twinkle_http.server.requests.access_log import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from twinkle_http.server.requests.access_log import ServerMetrics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(metrics: ServerMetrics, gauges: Mapping[str, tuple[str, float]]) -> str:
    """The metrics as text.

    Args:
        metrics: What it did.
        gauges: What it holds now: help and value by name.
    """
    return "\n".join([*_lines(metrics, gauges), ""])


def _lines(metrics: ServerMetrics, gauges: Mapping[str, tuple[str, float]]) -> Iterator[str]:
    yield from _head("twinkle_http_requests_total", "counter", "Requests, by status of the answer.")
    for status, count in sorted(metrics.statuses.items()):
        yield f'twinkle_http_requests_total{{status="{status}"}} {count}'
    yield from _head("twinkle_http_sent_bytes_total", "counter", "Bytes of answers.")
    yield f"twinkle_http_sent_bytes_total {metrics.sent}"
    yield from _head("twinkle_calls_failed_total", "counter", "Calls that failed, by name.")
    for name, calls in sorted(metrics.calls.items()):
        yield f'twinkle_calls_failed_total{{call="{_escaped(name)}"}} {calls.failed}'
    yield from _head("twinkle_call_seconds", "histogram", "Time of calls, by name.")
    for name, calls in sorted(metrics.calls.items()):
        label = f'call="{_escaped(name)}"'
        bounds = [*map(repr, BOUNDS), "+Inf"]
        for bound, count in zip(bounds, accumulate(calls.counts), strict=True):
            yield f'twinkle_call_seconds_bucket{{{label},le="{bound}"}} {count}'
        yield f"twinkle_call_seconds_sum{{{label}}} {calls.seconds!r}"
        yield f"twinkle_call_seconds_count{{{label}}} {sum(calls.counts)}"
    for name, (about, value) in gauges.items():
        yield from _head(name, "gauge", about)
        yield f"{name} {value!r}"


def _head(name: str, kind: str, about: str) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
