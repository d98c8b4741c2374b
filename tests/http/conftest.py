"""A server in another process, and what tests send to it over sockets of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pytest
from tests.http.raw import Raw

from twinkle_mesh import DeviceGroup
from twinkle_remote import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path


@pytest.fixture(scope="session")
def serving() -> Callable[..., AbstractContextManager[str]]:
    """Runs a program that prints the address of its server as its first line, until the block ends."""

    @contextmanager
    def run(source: str, *arguments: str, stderr: IO[str] | None = None) -> Iterator[str]:
        command = [sys.executable, "-c", textwrap.dedent(source), *arguments]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            limit = threading.Timer(60.0, process.kill)
            limit.start()
            try:
                address = process.stdout.readline().strip()
                limit.cancel()
                assert address.startswith("http"), address
                yield address
                process.stdin.close()
                assert process.wait(60) == 0
            finally:
                limit.cancel()
                process.kill()

    return run


@pytest.fixture(scope="session")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server of `raw` logs, at every level."""
    return tmp_path_factory.mktemp("server") / "log"


@pytest.fixture(scope="session")
def raw(serving: Callable[..., AbstractContextManager[str]], log: Path) -> Iterator[Raw]:
    """A server of the classes in `json_subjects`, for two tenants."""
    with log.open("w") as stderr, serving(program("json_subjects"), stderr=stderr) as found:
        yield Raw(found)


@pytest.fixture(scope="session")
def address(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    """A server of the classes in `subjects`."""
    with serving(program("subjects")) as found:
        yield found


def program(module: str) -> str:
    return f"import runpy; runpy.run_module('tests.http.{module}', run_name='__main__')"


@pytest.fixture
def threads() -> Iterator[None]:
    """A session of threads with one group."""
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        yield
