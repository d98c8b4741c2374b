"""No loader process is left behind."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def no_process_is_left() -> Iterator[None]:
    before = {process.pid for process in multiprocessing.active_children()}
    yield
    left = [process for process in multiprocessing.active_children() if process.pid not in before]
    assert not left
