"""A named set of devices or processes that workers run on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ._messages import nearest_divisors, preview, would

_ALIASES = {"CUDA": "GPU"}


@dataclass(frozen=True, init=False)
class DeviceGroup:
    """A named group of workers and the hardware it occupies.

    Args:
        name: What `remote_group=` refers to.
        ranks: Device indices, or how many devices; a CPU group takes a count only.
        device_type: GPU, CPU, NPU, ...; case does not matter and cuda is GPU.
        visible_devices: The part of the hardware that the group may use, such as "8,9"; all of it by default.
        gpus_per_worker: How many of the devices one worker holds; divides the number of ranks.
    """

    name: str
    ranks: int | tuple[int, ...]
    device_type: str
    visible_devices: str | None = None
    gpus_per_worker: int = 1

    def __init__(
        self,
        name: str,
        ranks: int | list[int] | tuple[int, ...] | range,
        device_type: str,
        visible_devices: str | None = None,
        gpus_per_worker: int = 1,
    ) -> None:
        kind = _device_type(device_type)
        visible = None if visible_devices is None else _visible(visible_devices, kind)
        held = ranks if isinstance(ranks, int) else tuple(ranks)
        _check_name(name)
        _check_ranks(held, kind)
        count = held if isinstance(held, int) else len(held)
        _check_share(gpus_per_worker, count, kind)
        if visible is not None and count > len(visible):
            raise ValueError(
                f"ranks asks for {count} devices, but visible_devices={visible_devices!r} has {len(visible)}"
            )
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "ranks", held)
        object.__setattr__(self, "device_type", kind)
        object.__setattr__(self, "visible_devices", None if visible is None else ",".join(map(str, visible)))
        object.__setattr__(self, "gpus_per_worker", gpus_per_worker)

    @property
    def num_ranks(self) -> int:
        """How many devices (or, on CPU, processes) the group spans."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    @property
    def num_workers(self) -> int:
        """How many worker processes the group has."""
        return self.num_ranks // self.gpus_per_worker

    @property
    def devices(self) -> tuple[int, ...] | None:
        """The device indices that the group names, or None where only a count was given."""
        return None if isinstance(self.ranks, int) else self.ranks

    @property
    def visible(self) -> tuple[int, ...] | None:
        """The hardware that the group is restricted to, or None for all of it."""
        return None if self.visible_devices is None else tuple(map(int, self.visible_devices.split(",")))


def _device_type(device_type: object) -> str:
    if not isinstance(device_type, str) or not device_type.strip().isalnum():
        raise ValueError(f"device_type={device_type!r} must name the hardware; GPU, CPU or NPU would")
    kind = device_type.strip().upper()
    return _ALIASES.get(kind, kind)


def _visible(visible_devices: object, kind: str) -> tuple[int, ...]:
    if kind == "CPU":
        raise ValueError(f"visible_devices={visible_devices!r} needs devices; a CPU group has none to choose from")
    parts = [part.strip() for part in str(visible_devices).split(",")]
    if not all(re.fullmatch(r"\d+", part) for part in parts):
        raise ValueError(f'visible_devices={visible_devices!r} must be device indices with commas, such as "8,9"')
    devices = tuple(map(int, parts))
    if len(set(devices)) != len(devices):
        raise ValueError(f"visible_devices={visible_devices!r} names a device twice")
    return devices


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name={name!r} must be a word that remote_group= can refer to")


def _check_ranks(ranks: int | tuple[object, ...], kind: str) -> None:
    if isinstance(ranks, bool):
        raise ValueError(f"ranks={ranks!r} must be a count or a list of device indices")
    if isinstance(ranks, int):
        if ranks < 1:
            raise ValueError(f"ranks={ranks} must be at least 1")
        return
    if kind == "CPU":
        raise ValueError(f"ranks=[{preview(ranks)}]: a CPU group takes a count; ranks={len(ranks)} would")
    if not ranks:
        raise ValueError("ranks=[] must name at least one device")
    if any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 for rank in ranks):
        raise ValueError(f"ranks=[{preview(ranks)}] must be device indices, each a whole number of at least 0")
    if len(set(ranks)) != len(ranks):
        raise ValueError(f"ranks=[{preview(ranks)}] names a device twice")


def _check_share(gpus_per_worker: object, count: int, kind: str) -> None:
    if isinstance(gpus_per_worker, bool) or not isinstance(gpus_per_worker, int) or gpus_per_worker < 1:
        raise ValueError(f"gpus_per_worker={gpus_per_worker!r} must be a whole number of at least 1")
    if kind == "CPU" and gpus_per_worker != 1:
        raise ValueError(f"gpus_per_worker={gpus_per_worker} needs devices; a CPU group takes 1")
    if count % gpus_per_worker:
        near = nearest_divisors(count, gpus_per_worker)
        raise ValueError(f"gpus_per_worker={gpus_per_worker} does not divide ranks={count}; {would(near)}")
