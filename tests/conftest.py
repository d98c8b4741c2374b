"""Which tests start processes that work together, those of twinkle-ray and of the examples; one cluster for them."""

from __future__ import annotations

import os
import re
import signal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# A shell starts jobs in its background deaf to Ctrl-C, and programs of tests that are interrupted would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# Ray's workers stand back behind every other process, and beside the other tests twelve of them came to a halt; but
# not by as much as they would, or other clusters' agents do not start in their time.
os.environ.setdefault("RAY_worker_niceness", "5")
TOGETHER = (HERE / "ray", HERE / "examples")


@cache
def names_mark(path: Path) -> bool:
    """Whether a file is one of those that the Makefile runs with a cluster."""
    return re.search(r"mark\.(ray|processes)\b", path.read_text()) is not None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, before `-m` selects; long files come first."""
    for item in items:
        if any(folder in item.path.parents for folder in TOGETHER):
            item.add_marker(pytest.mark.processes)
        elif any(map(item.get_closest_marker, ("ray", "processes"))) and not names_mark(item.path):
            raise pytest.UsageError(f"{item.nodeid}: its file has no mark.ray or mark.processes in its text")
        if item.get_closest_marker("ray"):  # Ray leaves sockets, pipes and log files to the garbage collector
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    # A long file at the end would leave one process to itself.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """This process connected to one embedded cluster, which sessions without an address join and leave running."""
    from twinkle_ray.cluster.cluster import Cluster

    cluster = Cluster(None, num_cpus=16)
    yield
    cluster.close()
