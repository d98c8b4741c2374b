import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

# The examples import one another as top-level modules, as they do where they are run.
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@pytest.fixture(autouse=True)
def _no_group_is_left() -> Iterator[None]:
    """An actor that is built in the test's process makes the default process group: other tests make their own."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
