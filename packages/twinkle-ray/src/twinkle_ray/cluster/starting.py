"""The start of a cluster of the session's own: a private folder, the driver's environment, the loopback device."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_ray.cluster.environment import HASH_SEED
from twinkle_ray.cluster.watchdog import MARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # has the effect of `on_loopback` in the cluster's processes
_TOKEN_LOG = "ray._private.authentication.authentication_token_setup"
_LONGEST = 24  # most bytes of a parent folder: the paths of Ray's sockets inside it have a limit of the system


def private_folder() -> Path:
    """Make a folder for Ray's files that only this user can enter: Ray makes the files readable for everyone."""
    parent = os.environ.get("RAY_TMPDIR")
    if not parent:
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _LONGEST else "/tmp"
    return Path(tempfile.mkdtemp(prefix="twinkle-", dir=parent))


@contextmanager
def quiet() -> Iterator[None]:
    """Silence a line that Ray logs at each start, which advises to turn its token off."""
    logger = logging.getLogger(_TOKEN_LOG)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray's processes listen on the loopback device alone, as Ray does by default outside of Linux."""
    constants: Any = import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def marked_children(mark: str, hash_seed: str) -> Iterator[None]:
    """Set a variable that the processes of the cluster inherit, by which they are found, and their hash seed.

    Args:
        mark: Its value.
        hash_seed: The seed by which Python hashes texts there.
    """
    own: Mapping[str, str] = {
        MARK: mark,
        HASH_SEED: hash_seed,
        _LOOPBACK: "0",
        "SPT_NOENV": "1",  # otherwise the titles of Ray's agents overwrite their environment in /proc
        "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
    }
    before = {name: os.environ.pop(name, None) for name in (*own, "RAY_ADDRESS")}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
