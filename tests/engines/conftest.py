from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(Path(__file__).parent))  # the programs of the tests import the same tools
os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    """An engine that is built in the test's process makes the default process group: other tests make their own."""
    import torch.distributed as dist  # the process that hands out tests reads this file, and loads no torch

    yield
    if dist.is_initialized():
        dist.destroy_process_group()
