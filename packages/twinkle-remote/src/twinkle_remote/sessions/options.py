"""The keywords of `initialize` and `session` by mode, for type checkers; the backends of other packages too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Required, SupportsIndex, TypedDict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    from twinkle_mesh import DeviceGroup, DeviceMesh


class SessionOptions(TypedDict, total=False):
    """The keywords of every mode; `initialize` documents them."""

    groups: Sequence[DeviceGroup] | None
    global_device_mesh: DeviceMesh | None
    lazy_collect: bool
    seed: SupportsIndex
    max_in_flight: int


class SavingOptions(SessionOptions, total=False):
    """The keywords of modes whose workers can save calls that fail.

    Attributes:
        save_failures: A private folder for such calls.
    """

    save_failures: str | PathLike[str] | None


class LocalOptions(SessionOptions, total=False):
    """The keywords of "local".

    Attributes:
        exchange_timeout: Seconds that a process waits for the others' outcomes of a call.
    """

    exchange_timeout: float


class ThreadsOptions(SavingOptions, total=False):
    """The keywords of "threads".

    Attributes:
        start_timeout: Seconds that a constructor may take; None for no limit.
        close_timeout: Seconds that the end of the session waits for busy threads.
    """

    start_timeout: float | None
    close_timeout: float


class RayOptions(SavingOptions, total=False):
    """The keywords of "ray", which twinkle-ray brings; `twinkle_ray.RayBackend` documents them."""

    address: str | None
    placement_timeout: float
    start_timeout: float
    env_allow: str | Sequence[str]
    restart: Literal["group"] | None
    metrics: bool
    calls: Literal["auto", "direct", "by_node"]
    colocate: Sequence[Sequence[str]]
    progress: bool
    start_method: Literal["forkserver", "spawn"]
    ray_options: Mapping[str, Any] | None


class HttpOptions(SessionOptions, total=False):
    """The keywords of "http".

    Attributes:
        address: URL of the server.
        token: The server's token.
        tls: File with the certificates to trust; None for those of the system.
        insecure: Plain HTTP beyond this machine is accepted.
        patience: Seconds for which a lost connection is tried again.
        compress: Values travel compressed, both ways.
    """

    address: Required[str]
    token: str
    tls: str | None
    insecure: bool
    patience: float
    compress: bool
