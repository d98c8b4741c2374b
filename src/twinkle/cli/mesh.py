"""`twinkle mesh`: draws a mesh and lists its groups."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    import argparse

_SIZES = {
    "dp": "data parallel replicas",
    "fsdp": "fully sharded data parallel ranks",
    "tp": "tensor parallel ranks",
    "pp": "pipeline stages",
    "cp": "context parallel ranks",
    "ulysses": "ranks that split a sequence, among dp * fsdp",
    "ep": "expert parallel ranks",
    "etp": "tensor parallel ranks of the experts",
    "vpp": "virtual stages per pipeline rank",
}
_MOST_GROUPS = 8


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `mesh` to the command's parsers."""
    text = "draw a device mesh, with the data rank of each rank, and list its groups"
    example = "Example: twinkle mesh --world-size 16 --pp 2 --tp 4 --rank 5"
    parser = subparsers.add_parser("mesh", help=text, description=f"{text.capitalize()}.", epilog=example)
    for name, meaning in _SIZES.items():
        inferred = "; -1 infers it from --world-size" if name in ("dp", "fsdp", "tp", "pp", "cp") else ""
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{meaning}{inferred}")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks; the product of the sizes if unset"
    )
    parser.add_argument("--order", help="dims innermost first, as in Megatron: tp-cp-ep-dp-pp")
    parser.add_argument("--sequence-parallel", action="store_true", help="activations are split over tp")
    parser.add_argument("--device-type", default="cuda", help="cuda (the default), cpu, npu, ...")
    parser.add_argument("--rank", type=int, metavar="R", help="the rank to mark, with its groups")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a mesh; return 2 for sizes that do not fit, with what to use on stderr."""
    given = vars(args)
    fields: dict[str, Any] = {f"{name}_size": given[name] for name in _SIZES}
    fields |= {name: given[name] for name in ("world_size", "device_type", "sequence_parallel", "order")}
    try:
        mesh = DeviceMesh.from_sizes(**fields)
        picture = mesh.describe(args.rank)
    except ValueError as error:
        print(f"twinkle mesh: {error}", file=sys.stderr)
        return 2
    print(picture)
    print("\ngroups")
    dims = [(mesh, dim) for dim in mesh.dim_names]
    if mesh.ep_size > 1:
        dims += [(mesh.expert, dim) for dim in ("ep_shard", "ep", "etp")]
    for view, dim in dims:
        groups = view.groups(dim)
        more = f" ... and {len(groups) - _MOST_GROUPS} more" if len(groups) > _MOST_GROUPS else ""
        print(f"  {dim}: {' '.join(map(str, groups[:_MOST_GROUPS]))}{more}")
    print(f"  collect: {mesh.collect_ranks}")
    return 0
