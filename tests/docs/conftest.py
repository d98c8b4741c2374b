"""One Ray cluster for the pages whose programs run on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ray opens sockets, pipes and log files that it leaves to the garbage collector."""
    for item in items:
        if item.get_closest_marker("ray"):
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """This process connected to one embedded cluster, which sessions without an address join and leave running."""
    from twinkle_ray.cluster.cluster import Cluster

    cluster = Cluster(None, num_cpus=16)
    yield
    cluster.close()
