"""How a cluster of the session's own is started: a private folder, the driver's environment, the loopback device."""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twinkle_ray.cluster.watchdog import MARK

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # tells the cluster's processes what `on_loopback` tells this one
_TOKEN_LOG = "ray._private.authentication.authentication_token_setup"
_LONGEST = 24  # bytes of a parent folder below which Ray's sockets have names that are short enough for a socket


def private_folder() -> Path:
    """A new folder for Ray's own, which nobody else can enter; Ray opens what is in it to everyone, again and again."""
    parent = os.environ.get("RAY_TMPDIR")
    if not parent:
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _LONGEST else "/tmp"
    return Path(tempfile.mkdtemp(prefix="twinkle-", dir=parent))


@contextmanager
def quiet() -> Iterator[None]:
    """Without the advice that Ray gives at each start on how to turn its protection off."""
    logger = logging.getLogger(_TOKEN_LOG)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def on_loopback() -> Iterator[None]:
    """Have Ray's processes listen on the loopback device alone, as Ray does by default on systems other than Linux."""
    constants: Any = import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def marked_children(mark: str) -> Iterator[None]:
    """What the cluster's processes inherit beside the driver's environment: a mark, by which they are found again.

    Args:
        mark: Its value.
    """
    own: Mapping[str, str] = {
        MARK: mark,
        _LOOPBACK: "0",
        "SPT_NOENV": "1",  # otherwise the titles of Ray's agents overwrite what /proc tells of their environment
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
