"""A Ray cluster over hosts: a node on each, started as one would by hand, without what no test looks at."""

from __future__ import annotations

import os
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hosts import Hosts

HEAD_PORT = 6379
_RAY = (str(Path(sysconfig.get_path("scripts")) / "ray"),)
_NO_LOGS = "--include-log-monitor=false"  # workers print nothing, and the process costs half a second
_STARTED = "Ray runtime started."
_SECONDS = 180.0  # for all nodes; a quiet machine needs ten
_ATTEMPTS = 3  # Ray gives a node up that is not there after 30 s


def environment(hosts: Hosts, token: str) -> dict[str, str]:
    """The variables of the cluster's nodes and of the programs that join it."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TMPDIR": str(hosts.folder),
        "RAY_worker_niceness": "5",
        "PYTHONHASHSEED": "0",  # workers need no runtime environment
        # As the page on limits says: a host that does not answer is lost after some 10 s, not after a minute.
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }


def start_nodes(hosts: Hosts, names: Sequence[str], variables: dict[str, str], logs: Path, *, amount: int = 4) -> str:
    """Start a Ray node on each of some hosts, with one CPU and some devices of a type with the host's name.

    Args:
        hosts: The hosts; their end ends the nodes.
        names: Those that get a node; the first becomes the head.
        variables: From `environment`.
        logs: A folder for what the nodes print.
        amount: Devices of each host.

    Returns:
        The address of the head.
    """
    first, *others = names
    head = f"{hosts.addresses[first]}:{HEAD_PORT}"
    folder = f"--temp-dir={hosts.folder}/r"
    own = ["--head", f"--port={HEAD_PORT}", "--include-dashboard=false", "--no-monitor", folder]
    _start(hosts, [first], own, variables, logs, amount)
    _start(hosts, others, [f"--address={head}"], variables, logs, amount)
    return head


def _start(
    hosts: Hosts, names: Sequence[str], how: Sequence[str], variables: dict[str, str], logs: Path, amount: int
) -> None:
    until = time.monotonic() + _SECONDS
    missing = dict.fromkeys(names, 0)
    starting = {}
    while missing:
        for name in missing:
            log = logs / f"{name}.{missing[name]}.log"
            if name not in starting:
                own = [f"--node-ip-address={hosts.addresses[name]}", f'--resources={{"{name}": {amount}}}']
                started = [*how, *own, "--num-cpus=1", "--disable-usage-stats", _NO_LOGS, "--block"]
                command = [*_RAY, "start", *started]
                starting[name] = hosts.start(name, *command, output=log, environment={**os.environ, **variables})
            elif _STARTED in log.read_text():
                del missing[name]
                break
            elif starting[name].poll() is not None and missing[name] < _ATTEMPTS:
                del starting[name]
                missing[name] += 1
            assert starting.get(name) is None or starting[name].poll() is None, f"{name}: {log.read_text()}"
            assert time.monotonic() < until, f"{name} has not started a node: {log.read_text()}"
        time.sleep(0.1)
