"""The interpreter that a node starts workers with: a file that runs the launcher."""

from __future__ import annotations

import os
import shlex
import stat
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast, get_args
from zlib import crc32

from twinkle_ray.cluster.environment import HASH_SEED
from twinkle_ray.forkserver.server import MODULES
from twinkle_ray.python_internals import environment, interpreter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

StartMethod = Literal["forkserver", "spawn"]

_LAUNCHER = Path(__file__).with_name("launcher.py")
# Large, without threads, and without a device before its first use. torch loads the last one for the first optimizer.
SHARED = (
    *("numpy", "torch", "transformers"),
    *("torch.distributed.fsdp", "torch.distributed.pipelining", "torch.distributed.tensor", "torch._dynamo"),
)


def check_start_method(start_method: str) -> StartMethod:
    """Return how workers start.

    Raises:
        ValueError: It is none of the ways.
    """
    known = get_args(StartMethod)
    if start_method not in known:
        raise ValueError(f"start_method={start_method!r} must be {' or '.join(map(repr, known))}")
    return cast("StartMethod", start_method) if hasattr(os, "pidfd_open") else "spawn"


def chosen_start_method(start_method: str | None, device_types: Iterable[str]) -> StartMethod:
    """Return how workers of groups start, where the user has chosen it, or has not.

    Forks are the default where all groups are of CPUs. A driver of a device that was opened before a fork does not work
    after it; the server opens none, but that has not been seen on a device: there it is an option.

    Args:
        start_method: The user's choice, or None.
        device_types: Of the groups.

    Raises:
        ValueError: It is none of the ways.
    """
    if start_method is None:
        start_method = "forkserver" if set(device_types) <= {"CPU"} else "spawn"
    return check_start_method(start_method)


def node_folder() -> Path:
    """A folder for the nodes of this user and this interpreter, which outlives them.

    Raises:
        PermissionError: Another user could enter it, or has made it.
    """
    folder = Path(tempfile.gettempdir()) / f"twinkle-forkserver-{os.getuid()}-{crc32(sys.executable.encode()):08x}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077 or not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} must be a folder of this user that nobody else can enter: remove it")
    return folder


@contextmanager
def forking(folder: Path, modules: Iterable[str]) -> Iterator[None]:
    """A node that this process starts meanwhile has a fork server: its interpreter is the launcher.

    A fork hashes texts as the server does, so the node has a hash seed: that of the environment, or 0.

    Args:
        folder: A folder that only this user can enter; it stays as long as the node.
        modules: Names of modules that the server loads with Ray.
    """
    path = folder / "python"
    command = shlex.join([sys.executable, "-I", "-S", str(_LAUNCHER), str(folder)])
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write(f'#!/bin/sh\nexec {command} "$@"\n')
    os.chmod(file.name, 0o700)
    os.replace(file.name, path)  # another node may be reading it
    seed = os.environ.get(HASH_SEED, "")
    own = {MODULES: ",".join(modules), HASH_SEED: seed if seed.isdecimal() else "0"}
    with environment(own), interpreter(path):
        yield
