"""The Ray cluster under a session: joined where there is one, started and ended with the session otherwise."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from twinkle_ray.cluster.environment import inherited
from twinkle_ray.cluster.watchdog import MARK, Guard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_log = logging.getLogger("twinkle.ray")
# Ray ends a node whose agents are not there after 15 s, waits 30 s for the node, and lets nobody change either.
_GIVEN_UP = "node timed out during startup"
_ATTEMPTS = 3


class Cluster:
    """A connection to a cluster, and the cluster itself where it was started here.

    Args:
        address: Address of a cluster; None for RAY_ADDRESS, or a cluster of this session's own.
        num_cpus: Logical CPUs of a cluster that is started.
        env_allow: Patterns of variables that processes of a started cluster inherit.
        options: Further arguments of `ray.init`.
    """

    def __init__(
        self,
        address: str | None,
        *,
        num_cpus: int,
        env_allow: Sequence[str] = (),
        options: dict[str, Any] | None = None,
    ) -> None:
        self._guard: Guard | None = None
        self._joined_before = ray.is_initialized()
        if self._joined_before:
            return
        address = address or os.environ.get("RAY_ADDRESS") or None
        arguments: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": True, **(options or {})}
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                f"address={address!r} is Ray's remote client, which cannot place or watch workers: run the program on "
                "a machine of the cluster, with its address as host:port, or 'auto'"
            )
        if address is not None:
            ray.init(address=address, **arguments)
            return
        private_token()
        own = {"num_cpus": max(1, num_cpus), "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        arguments = own | arguments
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start(env_allow, arguments)
            except BaseException as error:
                self.close()
                if attempt == _ATTEMPTS or _GIVEN_UP not in str(error):
                    raise
                _log.warning("Ray gave up a cluster that was not there after 30 s (busy host?); it is started again")
            else:
                return

    def _start(self, env_allow: Sequence[str], arguments: dict[str, Any]) -> None:
        mark = secrets.token_hex(16)
        self._guard = Guard(mark)
        with _inherited(env_allow, mark), _on_loopback(), _quiet(_TOKEN_LOG):
            ray.init(address="local", **arguments)

    def close(self) -> None:
        """Disconnect; end the cluster where it was started here."""
        if self._joined_before:
            return
        ray.shutdown()
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.close()


def private_token() -> None:
    """See to it that the token of this user's clusters is there, and that nobody else can read it."""
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


_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # tells the cluster's processes what `_on_loopback` tells this one
_TOKEN_LOG = "ray._private.authentication.authentication_token_setup"


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without the advice that Ray gives at each start on how to turn its protection off."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray's processes listen on the loopback device alone, as Ray does by default on systems other than Linux."""
    constants: Any = import_module("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _inherited(patterns: Sequence[str], mark: str) -> Iterator[None]:
    """The environment that the cluster's processes inherit: what the allow-list names, and a mark of this cluster."""
    before = dict(os.environ)
    kept = inherited(before, patterns)
    kept[MARK] = mark
    kept[_LOOPBACK] = "0"
    kept["SPT_NOENV"] = "1"  # otherwise the titles of Ray's agents overwrite what /proc tells of their environment
    kept.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name in before.keys() - kept.keys():
        del os.environ[name]
    os.environ.update(kept)
    try:
        yield
    finally:
        told = {name: value for name, value in os.environ.items() if name not in kept}
        os.environ.clear()
        os.environ.update({**before, **told})
