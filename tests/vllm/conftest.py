"""Tests against the real engine, in an environment of its own: make test-vllm."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
sys.path[:0] = [
    str(HERE / "tools"),
    str(HERE.parent / "engines"),
]  # the programs of the tests import the same tools
os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The warnings of vLLM are its own."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model with a tied head, and its tokenizer."""
    from tiny_engine import save_tiny

    return save_tiny(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def session() -> Iterator[None]:
    """A session in this process, for a module's engine."""
    import twinkle

    with twinkle.session("local", seed=0):
        yield
    gc.collect()  # an engine's process ends with its sampler


@pytest.fixture(scope="module")
def trainer(session: None, folder: str) -> Any:
    from tiny_models import sgd

    from twinkle.engines import TransformersModel

    return TransformersModel(folder, optimizer=sgd)
