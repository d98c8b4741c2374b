"""The Ray cluster of a session: with an address it is joined, else it is started and ended with the session."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.disconnect import check_disconnected, disconnect
from twinkle_ray.cluster.environment import HASH_SEED, carried, hash_seed, left_behind, warn_left_behind
from twinkle_ray.cluster.forks import check_not_forked
from twinkle_ray.cluster.raylet import raylet_variable
from twinkle_ray.cluster.reachable import check_reachable
from twinkle_ray.cluster.starting import (
    make_token,
    marked_children,
    memory_limits,
    private_folder,
    start_errors,
    tighten_token,
)
from twinkle_ray.cluster.watchdog import Watchdog
from twinkle_ray.forkserver.interpreter import SHARED, forking, node_folder
from twinkle_ray.ray_internals import on_loopback, own_random_numbers, quiet_token
from twinkle_remote.backends.support import report_start
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from twinkle_ray.forkserver.interpreter import StartMethod

_log = logging.getLogger("twinkle.ray")
# Ray ends a node whose agents do not start within 15 s, and waits 30 s for a node; no option changes these times.
_GIVEN_UP = "node timed out during startup"
_ATTEMPTS = 3
_OWN = "local"
_WITHOUT_HEAD = (
    600  # seconds without a head after which Ray ends this process without an error; `NodeMonitor` notices after three
)
_MOST_SPARE_CPUS = 8  # Ray starts a process for each CPU


class Cluster:
    """A connection to a cluster, and the cluster itself if this object has started it.

    Args:
        address: Address of a cluster; "local" for one of this session's own; None for RAY_ADDRESS, or one of its own.
        num_cpus: Logical CPUs of a cluster that is started, not counting those that are left for tasks of the program.
        seed: The session's seed, by which workers hash texts, unless the driver has a hash seed.
        start_method: "forkserver" starts the workers of a cluster of its own as forks; "spawn" does not.
        options: Further arguments of `ray.init`.

    Raises:
        BackendError: A cluster of its own did not start; the message has the last errors of its processes. Or this
            process is still connected to an earlier one. Or nothing listens at the address.
    """

    def __init__(
        self,
        address: str | None,
        *,
        num_cpus: int,
        seed: int = 42,
        start_method: StartMethod = "spawn",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        check_not_forked()
        check_disconnected()
        self._watchdog: Watchdog | None = None
        self._folder: Path | None = None
        self._start_method = start_method
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
            tighten_token()
            with own_random_numbers():
                ray.init(address=address, **arguments)
            return
        report_start("starting a Ray cluster on this host; it ends with the session")
        make_token()
        own = {
            "num_cpus": num_cpus + min(os.cpu_count() or 1, _MOST_SPARE_CPUS),
            "include_dashboard": False,
            "_node_ip_address": "127.0.0.1",
        }
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start({**own, **arguments})
            except BaseException as error:
                errors = self._start_errors()
                self.close()
                if not isinstance(error, Exception):
                    raise
                if attempt == _ATTEMPTS or _GIVEN_UP not in str(error) or memory_limits():
                    raise BackendError(f"Ray's cluster did not start: {error}{memory_limits()}{errors}") from error
                _log.warning("Ray's cluster did not start within 30 s (busy host?); it is started again")
            else:
                return

    def _start(self, arguments: dict[str, Any]) -> None:
        mark = secrets.token_hex(16)
        self._folder = None if "_temp_dir" in arguments else private_folder()
        self._watchdog = Watchdog(mark, self._folder)
        if self._folder is not None:
            arguments["_temp_dir"] = str(self._folder / "r")
        own = {
            "gcs_rpc_server_reconnect_timeout_s": _WITHOUT_HEAD,
            "prestart_worker_first_driver": False,  # nobody has asked for those workers
        }
        arguments["_system_config"] = {**own, **(arguments.get("_system_config") or {})}  # Ray writes into it
        with (
            marked_children(mark, self._hash_seed),
            own_random_numbers(),
            on_loopback(),
            quiet_token(),
            self._forking(),
        ):
            ray.init(address=_OWN, **arguments)

    def _forking(self) -> AbstractContextManager[None]:
        if self._start_method == "spawn":
            return nullcontext()
        return forking(self._folder or node_folder(), [name for name in SHARED if name in sys.modules])

    def _start_errors(self) -> str:
        return "" if self._folder is None else start_errors(self._folder)

    def environment(self, env_allow: Sequence[str]) -> Mapping[str, str]:
        """Return the variables to set on workers; none if workers inherit those of the driver.

        Args:
            env_allow: Names in addition to the harmless ones; `*` and `?` are wildcards.
        """
        if self._watchdog is not None:
            return {}
        warn_left_behind(tuple(left_behind(os.environ, env_allow)))
        return carried(os.environ, env_allow)

    def start_options(self) -> Mapping[str, Any]:
        """Return Ray's options of workers: their hash seed is there before Python starts.

        Workers of a node inherit the node's, which a fork server gives it. Ray's runtime environment gives it to those
        of a joined cluster whose nodes have none; such workers are no forks.
        """
        if self._watchdog is not None or (raylet_variable(HASH_SEED) or "").isdecimal():
            return {}
        return {"runtime_env": {"env_vars": {HASH_SEED: self._hash_seed}}}

    def close(self) -> None:
        """Disconnect; end the cluster if it was started here, and remove its files."""
        if self._joined_before:
            return
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.resume_stopped()
        disconnect()
        if watchdog is not None:
            watchdog.close()
