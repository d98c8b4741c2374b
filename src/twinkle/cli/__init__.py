"""The `twinkle` command: each subcommand is a module with `add_parser` and `run(args) -> exit code`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import twinkle
from twinkle.cli import doctor, mesh, replay, rollouts, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

_PIPE_CLOSED = 141  # the convention of shells: 128 + the number of SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: Arguments after the program's name; None reads those of the process.

    Returns:
        The exit code: 0 done, 1 a check failed, 2 bad arguments, 141 nobody reads the output any more.
    """
    parser = argparse.ArgumentParser(prog="twinkle", description=twinkle.__doc__.partition("\n")[0])
    parser.add_argument("--version", action="version", version=f"twinkle {twinkle.__version__}")
    parser.set_defaults(run=None)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (mesh, serve, rollouts, replay, doctor):
        command.add_parser(subparsers)
    try:
        args = parser.parse_args(argv)
        if args.run is None:
            parser.print_help()
        code: int = 0 if args.run is None else args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would raise again at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _PIPE_CLOSED
    return code
