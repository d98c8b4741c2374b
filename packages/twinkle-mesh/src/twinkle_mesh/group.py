"""A named group of workers and their devices."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .sizes import check_divides, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class DeviceGroup:
    """A named group of workers and the devices that they run on.

    Attributes:
        name: The name for `remote_group=`.
        ranks: The number of devices, or their indices (kept as a tuple); a CPU group takes only a number.
        device_type: GPU, CPU, NPU, ...; case does not matter and cuda is GPU.
        visible_devices: The part of the hardware that the group may use, such as "8,9"; all of it by default.
        gpus_per_worker: Number of devices of one worker; divides the number of ranks.
        nodes: Number of nodes, with the same number of workers on each; needs a number of ranks. None uses one node if
            one can hold the group, and otherwise as few as possible. Backends of one process leave it alone.
    """

    name: str
    ranks: int | Sequence[int]
    device_type: str
    visible_devices: str | None = None
    gpus_per_worker: int = 1
    nodes: int | None = None

    def __post_init__(self) -> None:
        if not str(self.name).strip():
            raise ValueError(f"name={self.name!r} must be a word, because remote_group= uses it")
        kind = str(self.device_type).strip().upper().replace("CUDA", "GPU")
        if not kind.isalnum():
            raise ValueError(f"device_type={self.device_type!r} must name the hardware; use 'GPU', 'CPU' or 'NPU'")
        object.__setattr__(self, "device_type", kind)
        if isinstance(self.ranks, Iterable) and not isinstance(self.ranks, str):
            object.__setattr__(self, "ranks", _indices("ranks", list(self.ranks)))
        else:
            object.__setattr__(self, "ranks", whole_number("ranks", self.ranks, 1))
        object.__setattr__(self, "gpus_per_worker", whole_number("gpus_per_worker", self.gpus_per_worker, 1))
        if self.visible_devices is not None:
            texts = [text.strip() for text in str(self.visible_devices).split(",")]
            if not all(text.isdecimal() for text in texts):
                raise ValueError(f'visible_devices={self.visible_devices!r} must be device indices, such as "8,9"')
            visible = _indices("visible_devices", list(map(int, texts)))
            object.__setattr__(self, "visible_devices", ",".join(map(str, visible)))
            if self.num_ranks > len(visible):
                raise ValueError(
                    f"ranks asks for {self.num_ranks} devices, but visible_devices={self.visible_devices!r} has "
                    f"{len(visible)}; use at most {len(visible)} ranks"
                )
        named = self.devices is not None or self.visible_devices is not None
        if kind == "CPU" and (named or self.gpus_per_worker != 1):
            raise ValueError(
                f"a CPU group has no devices: use a number such as ranks={self.num_ranks}, without visible_devices "
                "and gpus_per_worker"
            )
        check_divides("gpus_per_worker", self.gpus_per_worker, self.num_ranks, f"ranks={self.num_ranks}")
        if self.nodes is not None:
            if named:
                raise ValueError(f"nodes={self.nodes} needs a number of ranks: named devices name their nodes")
            object.__setattr__(self, "nodes", whole_number("nodes", self.nodes, 1))
            check_divides("nodes", self.nodes, self.num_workers, f"the {self.num_workers} workers of the group")

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
        return None if isinstance(self.ranks, int) else tuple(self.ranks)

    @property
    def visible(self) -> tuple[int, ...] | None:
        """The device indices to which the group is restricted; None without a restriction."""
        return None if self.visible_devices is None else tuple(map(int, self.visible_devices.split(",")))


def _indices(field: str, given: Sequence[object]) -> tuple[int, ...]:
    """Return device indices as ints; raise for others, for none and for one that occurs twice."""
    indices = tuple([whole_number(field, index, 0) for index in given])
    if not indices or len(set(indices)) != len(indices):
        raise ValueError(f"{field}={list(given)} must name at least one device, and each once")
    return indices
