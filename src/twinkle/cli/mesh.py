"""`twinkle mesh`: draws a mesh, lists its groups and estimates their communication."""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import warnings
from importlib.util import find_spec
from textwrap import wrap
from typing import TYPE_CHECKING

from twinkle.cli.node_crossing import crossing_warnings
from twinkle_mesh import DeviceMesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
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
_WIDTH = 110  # where the output is no terminal


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
    parser.add_argument("--width", type=int, metavar="N", help=f"columns; those of the terminal ({_WIDTH} without one)")
    parser.add_argument("--svg", metavar="FILE", help="write the picture to a file as well")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a mesh; return 2 for sizes that do not fit, with a remedy on stderr."""
    width = args.width if args.width is not None else _terminal_width()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mesh = _mesh(vars(args))
            _check_nodes(mesh, args.nodes)
            picture = mesh.describe(args.rank, width=width)
            figures = mesh.explain(bytes=args.bytes)
        crossings = [] if mesh.nodes is None else list(crossing_warnings(mesh, _quietly, vars(args)))
        drawn = mesh.svg(args.rank) if args.svg else ""
    except ValueError as error:
        print(f"twinkle mesh: {error}", file=sys.stderr)
        return 2
    for warning in (*[each.message for each in caught], *crossings):
        print(f"twinkle mesh: warning: {warning}", file=sys.stderr)
    _show(picture)
    print("\n".join(_within(_groups(mesh), width)))
    print()
    print("\n".join(_figures(str(figures), width)))
    if args.svg:
        try:
            with open(args.svg, "w", encoding="utf-8") as file:
                file.write(drawn)
        except OSError as error:
            print(f"twinkle mesh: {args.svg} cannot be written: {error.strerror}", file=sys.stderr)
            return 1
    return 0


def _mesh(given: Mapping[str, object]) -> DeviceMesh:
    """The mesh of the command's arguments, by their names."""
    fields = {f"{name}_size": given[name] for name in _SIZES}
    fields |= {name: given[name] for name in ("world_size", "device_type", "sequence_parallel", "order")}
    mesh = DeviceMesh.from_sizes(**fields)  # type: ignore[arg-type]  # from_sizes checks each of them
    if given["nodes"] is None and given["ranks_per_node"] is None:
        return mesh
    return mesh.with_nodes(given["nodes"], ranks_per_node=given["ranks_per_node"])  # type: ignore[arg-type]  # likewise


def _quietly(given: Mapping[str, object]) -> DeviceMesh:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _mesh(given)


def _check_nodes(mesh: DeviceMesh, nodes: int | list[int] | None) -> None:
    """Raise for sizes of nodes that do not add up to the world; a mesh itself may be on some of its nodes' ranks."""
    if isinstance(nodes, list) and sum(nodes) > mesh.world_size:
        listed = ",".join(map(str, nodes))
        raise ValueError(
            f"--nodes {listed} has {sum(nodes)} ranks, but the mesh has {mesh.world_size}; "
            f"use sizes that add up to {mesh.world_size}"
        )


def _terminal_width() -> int:
    return shutil.get_terminal_size((_WIDTH, 24)).columns if sys.stdout.isatty() else _WIDTH


def _within(text: str, width: int) -> Iterator[str]:
    """The lines of a text, cut at spaces into lines that are at most `width` long."""
    for line in text.splitlines():
        inside = len(line) - len(line.lstrip())
        further = " " * (inside + 2) if width > inside + 12 else ""
        yield from wrap(line, width, subsequent_indent=further) if len(line) > width else [line]


def _figures(table: str, width: int) -> Iterator[str]:
    """The table of figures; where it is too wide, a paragraph for each dim."""
    _, head, *rows, note = table.splitlines()
    if max(map(len, (head, *rows))) <= width:
        yield from (head, *rows)
    else:
        names = [name.strip() for name in head.split("  ") if name.strip()]
        for row in rows:
            cells = [cell.strip() for cell in row.split("  ") if cell.strip()]
            pairs = ", ".join(f"{name} {cell}" for name, cell in zip(names[1:], cells[1:], strict=True))
            yield from _within(f"{cells[0]}: {pairs}", width)
    yield from _within(note, width)


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
    meant = "an amount such as 4096, 512M or 1.5G"
    amount = _number(number, float, meant) * units.get(unit, 1)
    if not math.isfinite(amount):
        raise argparse.ArgumentTypeError(f"{text!r} is not {meant}")
    return round(amount)


def _number(text: str, read: Callable[[str], Number], meant: str) -> Number:
    try:
        return read(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not {meant}") from None
