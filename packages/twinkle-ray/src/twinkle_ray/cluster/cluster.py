"""The Ray cluster of a session: with an address it is joined, else it is started and ended with the session."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.environment import HASH_SEED, carried, hash_seed, node_variable
from twinkle_ray.ray_internals import environment, on_loopback, own_random_numbers, quiet_token
from twinkle_remote.backends.support import report_start
from twinkle_remote.errors import BackendError, TwinkleError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_OWN = "local"
_NICENESS = "RAY_worker_niceness"
_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # `ray_internals.on_loopback` for the cluster's processes
_LONGEST = 24  # most bytes of a parent folder: the paths of Ray's sockets inside it have a limit of the system
_MOST_SPARE_CPUS = 8  # Ray starts a process for each CPU
_CONNECT_SECONDS = 10.0
_forked = False


class Cluster:
    """A connection to a cluster, and the cluster itself if this object has started it.

    Args:
        address: Address of a cluster; "local" for one of this session's own; None for RAY_ADDRESS, or one of its own.
        num_cpus: Logical CPUs of a cluster that is started, not counting those that are left for tasks of the program.
        seed: The session's seed, by which workers hash texts, unless the driver has a hash seed.
        options: Further arguments of `ray.init`.

    Raises:
        BackendError: A cluster of its own did not start, or nothing listens at the address.
        TwinkleError: This process was forked from one with a connection to Ray.
        ValueError: The address is one of Ray's remote client.
    """

    def __init__(
        self, address: str | None, *, num_cpus: int, seed: int = 42, options: Mapping[str, Any] | None = None
    ) -> None:
        if _forked:
            raise TwinkleError(
                f"process {os.getpid()} was forked from one with a connection to Ray, which works there alone: "
                'start this process by multiprocessing.get_context("spawn") to have a session of its own'
            )
        self._folder: Path | None = None
        self._is_own = False
        self._hash_seed = hash_seed(os.environ, seed)
        self._joined_before = ray.is_initialized()
        if self._joined_before:
            return
        address = address or os.environ.get("RAY_ADDRESS") or _OWN
        arguments: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": True, **(options or {})}
        if address.startswith("ray://"):
            raise ValueError(
                f"address={address!r} is Ray's remote client, which cannot place or watch workers: run the program on "
                "a machine of the cluster, with its address as host:port, or 'auto'"
            )
        if address != _OWN:
            report_start(f"joining the Ray cluster at {address}")
            check_reachable(address)
            with own_random_numbers():
                ray.init(address=address, **arguments)
            return
        report_start("starting a Ray cluster on this host; it ends with the session")
        self._is_own = True
        try:
            self._start({"num_cpus": num_cpus + min(os.cpu_count() or 1, _MOST_SPARE_CPUS), **arguments})
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise BackendError(f"Ray's cluster did not start: {error}") from error
            raise

    def _start(self, arguments: dict[str, Any]) -> None:
        make_token()
        if "_temp_dir" not in arguments:
            self._folder = private_folder()
            arguments["_temp_dir"] = str(self._folder / "r")
        arguments = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", **arguments}
        # Nobody has asked for workers that Ray starts ahead. Ray writes into the dict.
        arguments["_system_config"] = {"prestart_worker_first_driver": False, **(arguments.get("_system_config") or {})}
        own: Mapping[str, str | None] = {
            "RAY_ADDRESS": None,
            HASH_SEED: self._hash_seed,
            _LOOPBACK: "0",
            # The driver's priority: with Ray's default (15) workers starve next to any busy process of the host.
            _NICENESS: os.environ.get(_NICENESS, "0"),
            "RAY_USAGE_STATS_ENABLED": os.environ.get("RAY_USAGE_STATS_ENABLED", "0"),
        }
        with environment(own), own_random_numbers(), on_loopback(), quiet_token():
            ray.init(address=_OWN, **arguments)

    def environment(self, env_allow: Sequence[str]) -> Mapping[str, str]:
        """Return the variables to set on workers; none if workers inherit those of the driver.

        Args:
            env_allow: Names in addition to the harmless ones; `*` and `?` are wildcards.
        """
        return {} if self._is_own else carried(os.environ, env_allow)

    def start_options(self) -> Mapping[str, Any]:
        """Return Ray's options of workers: their hash seed is there before Python starts.

        Workers inherit that of their node. Ray's runtime environment gives it to those of a joined cluster whose nodes
        have none; such workers take longer to start.
        """
        if self._is_own or (node_variable(HASH_SEED) or "").isdecimal():
            return {}
        return {"runtime_env": {"env_vars": {HASH_SEED: self._hash_seed}}}

    def close(self) -> None:
        """Disconnect; end the cluster if it was started here, and remove its files."""
        if self._joined_before:
            return
        with own_random_numbers():
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def leave_to_parent() -> None:
    """In a forked process: leave the connection and the cluster to the parent; Ray's exit function would end both."""
    global _forked
    _forked = True
    atexit.unregister(ray.shutdown)


def private_folder() -> Path:
    """Make a folder for Ray's files that only this user can enter: Ray makes the files readable for everyone."""
    parent = os.environ.get("RAY_TMPDIR")
    if not parent:
        parent = tempfile.gettempdir()
        parent = parent if len(os.fsencode(parent)) <= _LONGEST else "/tmp"
    return Path(tempfile.mkdtemp(prefix="twinkle-", dir=parent))


def make_token() -> None:
    """Create the token file if there is none, readable by its owner only; Ray makes it readable by everyone."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        if path.stat().st_uid == os.getuid():
            path.chmod(0o600)


def check_reachable(address: str, seconds: float = _CONNECT_SECONDS) -> None:
    """Connect to the address of a cluster, and close the connection: Ray itself may wait for minutes.

    Args:
        address: host:port; anything else, as "auto", is left to Ray.
        seconds: How long the connection may take.

    Raises:
        BackendError: Nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    # Ray reads a loopback address as this host's own.
    is_here = host in ("localhost", "127.0.0.1", "[::1]")
    asked = str(ray.util.get_node_ip_address()) if is_here else host.strip("[]")  # type: ignore[no-untyped-call]  # Ray's own gap
    try:
        socket.create_connection((asked, int(port)), seconds).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"no Ray cluster answers at {address}, that is {asked}:{port}: {error}; start one with `ray start --head`, "
            f"and check it with `ray status --address {address}`"
        ) from error
