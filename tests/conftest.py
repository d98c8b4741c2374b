"""Which tests start processes that work together, as those of twinkle-ray; a cluster that they join."""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
# A shell starts jobs in its background deaf to Ctrl-C, and programs of tests that are interrupted would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# A busy machine is no failure: an example may take longer than 200 ms.
settings.register_profile("tests", deadline=None)
settings.load_profile("tests")
# Ray's workers would stand back behind every other process, and the tests wait for them.
os.environ.setdefault("RAY_worker_niceness", "0")
# The common cluster has the files of many workers: its log monitor looks for new ones twice a second, not ten times.
os.environ.setdefault("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "1")
# Where a worker shows a bar of Ray's, Ray would replace `print` in this process, for all tests that follow.
os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")
TOGETHER = (HERE / "ray", HERE / "examples")
CPUS, STORE_BYTES = 64, 1 << 30  # of the common cluster; the CPUs are logical ones
MARK = "RAY_TWINKLE_TEST"  # every process of a cluster of tests has it in its environment


@cache
def has_processes(path: Path) -> bool:
    """Whether tests of a file start processes that work together: in some folders, and where a mark says so."""
    return in_processes(path) or re.search(r"mark\.(ray|processes)\b", path.read_text()) is not None


def in_processes(path: Path) -> bool:
    """Whether all tests of a file start processes that work together."""
    return any(folder in path.parents for folder in TOGETHER)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files of which the Makefile's `-m` selects nothing: to import them all takes many seconds."""
    wanted = str(config.getoption("markexpr"))
    if "processes" not in wanted or not collection_path.match("test_*.py"):
        return None
    nothing = in_processes(collection_path) if wanted.startswith("not ") else not has_processes(collection_path)
    return nothing or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark by folder, before `-m` selects; long files come first."""
    for item in items:
        if in_processes(item.path):
            item.add_marker(pytest.mark.processes)
        elif any(map(item.get_closest_marker, ("ray", "processes"))) and not has_processes(item.path):
            raise pytest.UsageError(f"{item.nodeid}: its file has no mark.ray or mark.processes in its text")
        if item.get_closest_marker("ray"):  # Ray leaves sockets, pipes and log files to the garbage collector
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
    # A long file at the end would leave one process to itself.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """What processes by forkserver find loaded: this process has one such server, and its first list counts for all."""
    shared = ["pytest", "torch", "torch._dynamo", "torch.distributed.tensor", "twinkle_ray.collective"]
    multiprocessing.get_context("forkserver").set_forkserver_preload([*shared, "twinkle_ray.weights"])


@pytest.fixture(scope="session")
def common_cluster() -> Iterator[tuple[str, str]]:
    """A cluster on this host that this process and programs join: its address, and the mark of its processes."""
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="twinkle-c-", dir="/tmp")  # its name is short enough for Ray's sockets
    # Ray's Cluster writes its address into Ray's usual folder, which no Ray has made yet on a new machine.
    Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir()), "ray").mkdir(exist_ok=True)
    mark = uuid.uuid4().hex
    # Otherwise the titles of Ray's processes overwrite their environment in /proc. A hash seed of the nodes spares
    # each worker a runtime environment of its own.
    own = {MARK: mark, "SPT_NOENV": "1", "PYTHONHASHSEED": "0"}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": CPUS,
                "object_store_memory": STORE_BYTES,
                "include_dashboard": False,
                "no_monitor": True,
                "temp_dir": folder,
            },
        )
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    yield cluster.address, mark
    cluster.shutdown()  # type: ignore[no-untyped-call]  # Ray's own gap
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def joining(common_cluster: tuple[str, str]) -> dict[str, str]:
    """The environment of programs whose sessions join the common cluster, where they would start their own."""
    from tests.joined import joined_environment

    return joined_environment(common_cluster[0])


@pytest.fixture(scope="session")
def ray_cluster(common_cluster: tuple[str, str]) -> Iterator[None]:
    """This process connected to the common cluster: sessions without an address use its connection."""
    from twinkle_ray.cluster.cluster import Cluster

    cluster = Cluster(common_cluster[0], num_cpus=0)
    yield
    cluster.close()
