"""The meshes that the checks go through."""

from __future__ import annotations

from twinkle_mesh import DeviceMesh

_sizes = DeviceMesh.from_sizes

EIGHT: dict[str, DeviceMesh] = {
    "dp8": _sizes(dp_size=8),
    "dp2 pp2 tp2": _sizes(dp_size=2, pp_size=2, tp_size=2),
    "fsdp2 dp2 tp2": _sizes(fsdp_size=2, dp_size=2, tp_size=2),
    "fsdp4 dp2": _sizes(fsdp_size=4, dp_size=2),
    "dp4 cp2": _sizes(dp_size=4, cp_size=2),
    "pp2 cp2 tp2": _sizes(pp_size=2, cp_size=2, tp_size=2),
    "dp8 ulysses4": _sizes(dp_size=8, ulysses_size=4),
    "fsdp2 dp4 ulysses2": _sizes(fsdp_size=2, dp_size=4, ulysses_size=2),
    "dp innermost": _sizes(dp_size=4, tp_size=2, order="dp-tp"),
    "irregular": DeviceMesh.from_ranks([[5, 2], [7, 0], [1, 3], [4, 6]], ("dp", "tp")),
}
FOUR: dict[str, DeviceMesh] = {
    "dp4": _sizes(dp_size=4),
    "dp2 tp2": _sizes(dp_size=2, tp_size=2),
    "fsdp2 dp2": _sizes(fsdp_size=2, dp_size=2),
    "pp2 dp2": _sizes(pp_size=2, dp_size=2),
}
SCATTERED = DeviceMesh.from_ranks([[1, 2], [3, 0]], ("dp", "tp"))
TWO = _sizes(dp_size=2)
