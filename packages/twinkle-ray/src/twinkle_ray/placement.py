"""Placement groups for the workers of each device group, with a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.util.placement_group import placement_group, remove_placement_group

from twinkle_remote.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_mesh import DeviceGroup


def bundle(group: DeviceGroup) -> dict[str, float]:
    """What one worker of a group takes."""
    if group.device_type == "CPU":
        return {"CPU": 1}
    return {group.device_type: group.gpus_per_worker}


def place(group: DeviceGroup, timeout: float) -> Any:
    """Reserve what the workers of a group take.

    Raises:
        PlacementError: It is not there within the time.
    """
    reserved = placement_group([bundle(group)] * group.num_workers, strategy="PACK")
    if not reserved.wait(timeout):
        remove_placement_group(reserved)
        raise PlacementError(f"group {group.name!r} could not be placed within {timeout:g} s")
    return reserved


def actor_options(group: DeviceGroup) -> Mapping[str, Any]:
    """Resources of one worker's actor."""
    asked = bundle(group)
    known = {"CPU": "num_cpus", "GPU": "num_gpus"}
    options: dict[str, Any] = {"num_cpus": 0}
    options.update({known[kind]: amount for kind, amount in asked.items() if kind in known})
    rest = {kind: amount for kind, amount in asked.items() if kind not in known}
    return {**options, "resources": rest} if rest else options
