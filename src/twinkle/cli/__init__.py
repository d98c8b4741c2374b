"""The `twinkle` command: each subcommand is a module with `add_parser` and `run(args) -> exit code`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import twinkle
from twinkle.cli import doctor, mesh

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; None reads those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 bad arguments.
    """
    parser = argparse.ArgumentParser(prog="twinkle", description=twinkle.__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"twinkle {twinkle.__version__}")
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for command in (mesh, doctor):
        command.add_parser(subparsers)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code
