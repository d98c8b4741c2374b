"""`twinkle mesh`: draws a mesh, lists its groups and estimates their communication."""

from __future__ import annotations

import argparse
import sys
import warnings
from importlib.util import find_spec
from typing import TYPE_CHECKING

from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Number = TypeVar("Number", int, float)

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
    parser = subparsers.add_parser(
        "mesh",
        help="draw a device mesh, list its groups and say what they mean for communication",
        description="Draw a device mesh, list its groups and say what they mean for communication.",
        epilog="Example: twinkle mesh --world-size 16 --pp 2 --tp 4 --nodes 2 --rank 5",
    )
    for name, meaning in _SIZES.items():
        inferred = "; -1 infers it from --world-size" if name in ("dp", "fsdp", "tp", "pp", "cp") else ""
        parser.add_argument(f"--{name}", type=int, metavar="N", help=f"{meaning}{inferred}")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="number of ranks; the product of the sizes by default"
    )
    parser.add_argument("--order", help="dims innermost first, as in Megatron: tp-cp-ep-dp-pp")
    parser.add_argument("--sequence-parallel", action="store_true", help="activations are split over tp")
    parser.add_argument("--device-type", default="cuda", help="cuda (the default), cpu, npu, ...")
    parser.add_argument("--nodes", type=_nodes, metavar="N[,N...]", help="number of equal nodes, or the ranks on each")
    parser.add_argument("--ranks-per-node", type=int, metavar="N", help="ranks on each node, in place of --nodes")
    parser.add_argument("--rank", type=int, metavar="R", help="the rank to highlight, with its groups")
    parser.add_argument(
        "--bytes", type=_bytes, default=2**30, metavar="B", help="what one group moves, such as 512M (1G)"
    )
    parser.add_argument("--svg", metavar="FILE", help="write the picture to a file as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a mesh; return 2 for sizes that do not fit, with a remedy on stderr."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mesh = _mesh(args)
            picture = mesh.describe(args.rank)
            figures = mesh.explain(bytes=args.bytes)
        drawn = mesh.svg(args.rank) if args.svg else ""
    except ValueError as error:
        print(f"twinkle mesh: {error}", file=sys.stderr)
        return 2
    for warning in caught:
        print(f"twinkle mesh: warning: {warning.message}", file=sys.stderr)
    _show(picture)
    print(_groups(mesh))
    print(f"\n{str(figures).partition(chr(10))[2]}")
    if args.svg:
        try:
            with open(args.svg, "w", encoding="utf-8") as file:
                file.write(drawn)
        except OSError as error:
            print(f"twinkle mesh: {args.svg} cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _mesh(args: argparse.Namespace) -> DeviceMesh:
    sizes = {f"{name}_size": getattr(args, name) for name in _SIZES}
    mesh = DeviceMesh.from_sizes(
        world_size=args.world_size,
        device_type=args.device_type,
        sequence_parallel=args.sequence_parallel,
        order=args.order,
        **sizes,
    )
    if args.nodes is None and args.ranks_per_node is None:
        return mesh
    return mesh.with_nodes(args.nodes, ranks_per_node=args.ranks_per_node)


def _groups(mesh: DeviceMesh) -> str:
    """Return every group by dim, the first ones of many."""
    views = [(mesh, dim) for dim in mesh.dim_names]
    if mesh.ep_size > 1:
        views += [(mesh.expert, dim) for dim in ("ep_shard", "ep", "etp")]
    lines = ["groups"]
    for view, dim in views:
        groups = view.groups(dim)
        shown = " ".join(str(group) for group in groups[:_MOST_GROUPS])
        more = len(groups) - _MOST_GROUPS
        lines.append(f"  {dim}: {shown}{f' ... and {more} more' if more > 0 else ''}")
    lines.append(f"  collect: {mesh.collect_ranks!r}")
    return "\n".join(lines)


def _show(picture: str) -> None:
    """Print the picture, in colour where that is installed and the output is a terminal."""
    if sys.stdout.isatty() and find_spec("rich") is not None:
        from rich.console import Console

        Console(soft_wrap=True).print(picture)
    else:
        print(picture)


def _nodes(text: str) -> int | list[int]:
    """Read a number of nodes, or the ranks on each."""
    numbers = [
        _number(part, int, "a number of nodes such as 2, or the ranks on each such as 8,8,4")
        for part in text.split(",")
    ]
    return numbers if "," in text else numbers[0]


def _bytes(text: str) -> int:
    """Read an amount such as 512M; units are powers of 1024."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
    unit = text[-1:].upper()
    number = text[:-1] if unit in units else text
    return round(_number(number, float, "an amount such as 4096, 512M or 1.5G") * units.get(unit, 1))


def _number(text: str, read: Callable[[str], Number], meant: str) -> Number:
    try:
        return read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {meant}") from None
