"""Ids of requests in the errors of both sides, the log of calls, and the metrics: nothing of a client is unescaped."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
import textwrap
import threading
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from twinkle_http.server.requests.access_log import AccessLog
from twinkle_http.server.requests.metrics import metrics_text
from twinkle_remote import get, on, session
from twinkle_remote.conformance.subjects.components import Counter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "a token for tests"
SERVER = """
    import logging
    import sys
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session
    from twinkle_remote.conformance.subjects.components import Counter

    tokens = {"ann": "a token for tests", "bob": "another token", "watcher": "a third token"}
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        with serve([Counter], port=0, token=tokens, metrics_of_all="watcher") as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""


@contextmanager
def logging_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """A server, and the file of its log."""
    log = folder / "log"
    with log.open("w") as errors:
        command = [sys.executable, "-c", textwrap.dedent(SERVER)]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            limit = threading.Timer(60.0, process.kill)
            limit.start()
            try:
                address = process.stdout.readline().strip()
                limit.cancel()
                yield address, log
                process.stdin.close()
                assert process.wait(60) == 0
            finally:
                limit.cancel()
                process.kill()


def ask(address: str, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], str]:
    with closing(http.client.HTTPConnection(urlsplit(address).netloc, timeout=60.0)) as connection:
        given = {"authorization": f"Bearer {TOKEN}", **{key.replace("_", "-"): text for key, text in headers.items()}}
        connection.request(method, path, None if body is None else json.dumps(body), given)
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read().decode()


def test_requests_have_ids_in_errors_and_logs_of_both_sides(tmp_path: Path) -> None:
    with logging_server(tmp_path) as (address, log):
        with session("http", address=address, token=TOKEN):
            counter = on("group").create(Counter)
            assert counter.add(3) == 3
            with pytest.raises(TypeError) as caught:
                get(counter.add("x"))  # type: ignore[arg-type]  # what is tested
            with pytest.raises(Exception, match="is not served") as refused:
                on("group").create(Unserved)
        of_call = re.search(r"called from .*test_access_log.py:\d+, request ([0-9a-f]{8}-\d+)", str(caught.value))
        of_refusal = re.search(r"\(request ([0-9a-f]{8}-\d+)\)", str(refused.value))
        assert of_call and of_refusal, (str(caught.value), str(refused.value))
        status, headers, text = ask(address, "POST", "/v1/Counter", {"start": "x"}, x_request_id="from-a-proxy.1")
        assert status == 400 and json.loads(text)["error"]["request"] == "from-a-proxy.1" == headers["x-request-id"]
        component = json.loads(ask(address, "POST", "/v1/Counter", {})[2])["id"]
        for bad in ("a b", "x" * 65, 'a"b', "\u00e4", "a;b"):
            _, headers, text = ask(address, "POST", f"/v1/Counter/{component}/nothing", {}, x_request_id=bad)
            assert re.fullmatch(r"[0-9a-f]{8}-\d+", headers["x-request-id"])
            assert json.loads(text)["error"]["request"] == headers["x-request-id"]
        assert ask(address, "POST", "/nothing", authorization="Bearer of bad news")[0] == 401
        evil = "/v1/Counter/%0aWARNING%20forged%1b%5b31m/%22x"
        assert ask(address, "POST", evil, {})[0] == 403
    lines = log.read_text(encoding="utf-8").splitlines()
    calls = [line for line in lines if line.startswith("twinkle.http.access INFO")]
    assert any(re.search(r"ann Counter.add done, \d\.\d{4} s, request [0-9a-f]{8}-\d+$", line) for line in calls), lines
    assert any(re.search(rf"ann Counter.add failed with TypeError, .*, request {of_call[1]}$", line) for line in calls)
    assert any(re.search(r"ann Counter.__init__ done", line) for line in calls)
    assert any("ann POST '/v1/Counter' 400 InvalidArguments" in line and "from-a-proxy.1" in line for line in calls)
    assert any("- POST '/nothing' 401 without a known token" in line for line in calls)
    assert any(r"'/v1/Counter/\nWARNING forged\x1b[31m/" in line for line in calls), calls
    assert not any(word in line for line in lines for word in (TOKEN, "bad news", "\x1b"))
    assert not any(line.startswith("WARNING forged") for line in lines)


class Unserved(Counter):
    """A class that the server does not serve."""


def test_a_token_sees_the_metrics_of_its_own_tenant_and_one_sees_all(tmp_path: Path) -> None:
    bob = {"authorization": "Bearer another token"}
    with logging_server(tmp_path) as (address, _):
        assert ask(address, "GET", "/metrics", authorization="Bearer nothing")[0] == 401
        component = json.loads(ask(address, "POST", "/v1/Counter", {})[2])["id"]
        for _ in range(3):
            assert ask(address, "POST", f"/v1/Counter/{component}/add", {})[0] == 200
        assert ask(address, "POST", f"/v1/Counter/{component}/add", {"amount": "x"})[0] == 400
        others = json.loads(ask(address, "POST", "/v1/Counter", {"start": 1}, **bob)[2])["id"]
        for _ in range(2):
            assert ask(address, "POST", f"/v1/Counter/{others}/current", {}, **bob)[0] == 200
        with session("http", address=address, token=TOKEN):
            kept = on("group").create(Counter)
            results = [kept.add(1), kept.add(1)]
            assert len(get(results)) == 2
            status, headers, text = ask(address, "GET", "/metrics")
            own, other, everyone = (
                parse(ask(address, "GET", "/metrics", authorization=f"Bearer {token}")[2])
                for token in (TOKEN, "another token", "a third token")
            )
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    assert parse(text)['twinkle_call_seconds_count{call="Counter.add"}'] == 5
    assert own['twinkle_call_seconds_bucket{call="Counter.add",le="+Inf"}'] == 5
    assert own['twinkle_calls_failed_total{call="Counter.add"}'] == 0
    assert own['twinkle_http_requests_total{status="400"}'] == 1
    assert not any('status="401"' in name or "Counter.current" in name for name in own)
    assert other['twinkle_call_seconds_count{call="Counter.current"}'] == 2
    assert not any("Counter.add" in name or 'status="400"' in name for name in other)
    assert everyone['twinkle_call_seconds_count{call="Counter.current"}'] == 2
    assert everyone['twinkle_call_seconds_count{call="Counter.add"}'] == 5
    assert everyone['twinkle_http_requests_total{status="401"}'] == 1
    held = [metrics["twinkle_results"] for metrics in (own, other, everyone)]
    assert 2 <= held[2] <= held[0] <= 3 and held[1] == 0, "that of the constructor until its client drops it"
    gauges = ("calls_in_flight", "clients", "components", "draining")
    assert [own[f"twinkle_{name}"] for name in gauges] == [0, 2, 2, 0], own
    assert [other[f"twinkle_{name}"] for name in gauges] == [0, 1, 1, 0], other
    assert [everyone[f"twinkle_{name}"] for name in gauges] == [0, 3, 3, 0], everyone
    assert everyone["twinkle_http_sent_bytes_total"] > own["twinkle_http_sent_bytes_total"] > 0


def parse(text: str) -> dict[str, float]:
    """The metrics of a text, which must have the format of Prometheus."""
    metrics: dict[str, float] = {}
    typed: set[str] = set()
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert kind in ("counter", "gauge", "histogram") and name not in typed
            typed.add(name)
        elif not line.startswith("# HELP "):
            match = re.fullmatch(r'([a-z_]+)(\{(?:[a-z]+="(?:[^"\\]|\\.)*",?)*\})? (\S+)', line)
            assert match, line
            assert match[1] in typed or re.sub("_(bucket|sum|count)$", "", match[1]) in typed
            assert line.rpartition(" ")[0] not in metrics
            metrics[line.rpartition(" ")[0]] = float(match[3])
    return metrics


def test_a_histogram_counts_up_and_names_are_escaped() -> None:
    access_log = AccessLog()
    for seconds in (0.0001, 0.001, 0.02, 5.0, 10_000.0):
        access_log.called('A"\\\n', "", "r", seconds, "KeyError" if seconds > 1 else "")
    metrics = parse(metrics_text(access_log.metrics(None), {"twinkle_clients": ("Clients.", 2)}))
    name = 'call="A\\"\\\\\\n"'
    counts = [value for key, value in metrics.items() if key.startswith(f"twinkle_call_seconds_bucket{{{name}")]
    assert counts == sorted(counts) and counts[0] == 2 and counts[-1] == 5
    assert metrics[f"twinkle_calls_failed_total{{{name}}}"] == 2
    assert metrics[f"twinkle_call_seconds_sum{{{name}}}"] == pytest.approx(10_005.0211)
