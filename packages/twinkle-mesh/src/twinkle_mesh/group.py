"""A named group of workers and their devices."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .rules.checks import at_least_one, check_divides, whole_number
from .rules.messages import preview
from .rules.rule_error import RuleError
from .unknown_names import with_known_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ALIASES = {"CUDA": "GPU"}


@dataclass(frozen=True, init=False)
class DeviceGroup:
    """A named group of workers and the devices that they run on.

    Args:
        name: The name for `remote_group=`.
        ranks: Device indices, or the number of devices; a CPU group takes only a number.
        device_type: GPU, CPU, NPU, ...; case does not matter and cuda is GPU.
        visible_devices: The part of the hardware that the group may use, such as "8,9"; all of it by default.
        gpus_per_worker: Number of devices of one worker; divides the number of ranks.
        nodes: Number of nodes, with the same number of workers on each. None uses one node if one can hold the group,
            and otherwise as few as possible. It needs a number of ranks, and divides the number of workers. It has no
            effect on backends with one process.
    """

    name: str
    ranks: int | tuple[int, ...]
    device_type: str
    visible_devices: str | None = None
    gpus_per_worker: int = 1
    nodes: int | None = None

    @with_known_names
    def __init__(
        self,
        name: str,
        ranks: int | list[int] | tuple[int, ...] | range,
        device_type: str,
        visible_devices: str | None = None,
        gpus_per_worker: int = 1,
        nodes: int | None = None,
    ) -> None:
        fields: dict[str, object] = {
            "name": name,
            "ranks": ranks,
            "device_type": device_type,
            "visible_devices": visible_devices,
            "gpus_per_worker": gpus_per_worker,
            "nodes": nodes,
        }
        try:
            checked = _checked(fields)
        except RuleError as error:
            raise error.fitting(_checked, fields) from None
        for field, value in checked.items():
            object.__setattr__(self, field, value)

    @property
    def num_ranks(self) -> int:
        """Number of devices, or of processes on CPU."""
        return self.ranks if isinstance(self.ranks, int) else len(self.ranks)

    @property
    def num_workers(self) -> int:
        """Number of worker processes."""
        return self.num_ranks // self.gpus_per_worker

    @property
    def devices(self) -> tuple[int, ...] | None:
        """The device indices; None if only a number was given."""
        return None if isinstance(self.ranks, int) else self.ranks

    @property
    def visible(self) -> tuple[int, ...] | None:
        """The device indices to which the group is restricted; None without a restriction."""
        return None if self.visible_devices is None else tuple(map(int, self.visible_devices.split(",")))


def _checked(fields: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of a group after checks, in the form in which it keeps them."""
    kind = _device_type(fields["device_type"])
    visible = None if fields["visible_devices"] is None else _visible(fields["visible_devices"], kind)
    _check_name(fields["name"])
    ranks = _ranks(fields["ranks"], kind)
    count = ranks if isinstance(ranks, int) else len(ranks)
    share = _share(fields["gpus_per_worker"], count, kind)
    if visible is not None and count > len(visible):
        raise ValueError(
            f"ranks asks for {count} devices, but visible_devices={fields['visible_devices']!r} has {len(visible)}"
        )
    named = {
        "ranks": None if isinstance(ranks, int) else f"[{preview(ranks)}]",
        "visible_devices": None if visible is None else repr(fields["visible_devices"]),
    }
    return {
        "name": fields["name"],
        "ranks": ranks,
        "device_type": kind,
        "visible_devices": None if visible is None else ",".join(map(str, visible)),
        "gpus_per_worker": share,
        "nodes": None if fields["nodes"] is None else _nodes(fields["nodes"], named, count // share),
    }


def _device_type(device_type: object) -> str:
    if not isinstance(device_type, str) or not device_type.strip().isalnum():
        problem = f"device_type={device_type!r} must name the hardware"
        raise RuleError(problem, {"device_type": ["GPU", "CPU", "NPU"]}, named=False)
    kind = device_type.strip().upper()
    return _ALIASES.get(kind, kind)


def _visible(visible_devices: object, kind: str) -> tuple[int, ...]:
    if kind == "CPU":
        raise ValueError(f"visible_devices={visible_devices!r} needs devices; a CPU group has none")
    parts = [part.strip() for part in str(visible_devices).split(",")]
    if not all(re.fullmatch(r"\d+", part) for part in parts):
        raise ValueError(f'visible_devices={visible_devices!r} must be device indices with commas, such as "8,9"')
    devices = tuple(map(int, parts))
    if len(set(devices)) != len(devices):
        raise ValueError(f"visible_devices={visible_devices!r} names a device twice")
    return devices


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name={name!r} must be a word, because remote_group= uses it")


def _ranks(ranks: object, kind: str) -> int | tuple[int, ...]:
    """Return a count or device indices as ints."""
    if isinstance(ranks, Iterable) and not isinstance(ranks, str):
        return _indices(list(ranks), kind)
    try:
        count = whole_number("ranks", ranks)
    except ValueError:
        raise ValueError(f"ranks={ranks!r} must be a count or a list of device indices") from None
    return at_least_one("ranks", count)


def _indices(given: Sequence[object], kind: str) -> tuple[int, ...]:
    if not given:
        raise ValueError("ranks=[] must name at least one device")
    if kind == "CPU":
        raise RuleError(f"ranks=[{preview(given)}]: a CPU group takes a count", {"ranks": [len(given)]})
    try:
        indices = tuple([whole_number("ranks", rank) for rank in given])
    except ValueError:
        indices = (-1,)
    if min(indices) < 0:
        raise ValueError(f"ranks=[{preview(given)}] must be device indices, each a whole number of at least 0")
    if len(set(indices)) != len(indices):
        raise ValueError(f"ranks=[{preview(indices)}] names a device twice")
    return indices


def _share(gpus_per_worker: object, count: int, kind: str) -> int:
    try:
        share = at_least_one("gpus_per_worker", gpus_per_worker)
    except ValueError:
        raise ValueError(f"gpus_per_worker={gpus_per_worker!r} must be a whole number of at least 1") from None
    if kind == "CPU" and share != 1:
        raise RuleError(
            f"gpus_per_worker={share} needs devices, which a CPU group does not have",
            {"gpus_per_worker": [1]},
            named=False,
        )
    check_divides("gpus_per_worker", share, count, f"ranks={count}")
    return share


def _nodes(nodes: object, named: Mapping[str, object], workers: int) -> int:
    """Return the number of nodes.

    Args:
        nodes: As given.
        named: What names devices, by field; None where it does not.
        workers: The workers of the group.
    """
    count = at_least_one("nodes", nodes)
    for field, given in named.items():
        if given is not None:
            problem = f"nodes={count} needs a count of ranks: {field}={given} names devices, and so their nodes"
            raise RuleError(problem, {"nodes": [None]})
    check_divides("nodes", count, workers, f"the {workers} workers of the group")
    return count
