"""A server in another process, and what tests send to it over sockets of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager


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


@pytest.fixture
def threads() -> Iterator[None]:
    """A session of threads with one group."""
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        yield
