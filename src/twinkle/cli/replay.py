"""`twinkle replay`: builds the component of a saved call in this process, and makes the call again."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING

import twinkle_remote

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `replay` command."""
    parser = subparsers.add_parser(
        "replay",
        help="run a call that failed on a worker again, in this process",
        description="Run a call that initialize(..., save_failures=folder) had saved again, in this process: the "
        "component's constructor, then the call. The file is run as code: replay only files of your own programs.",
        epilog="Example: twinkle replay failures/Actor.update-actor-3-1f0c9a2e.failure --pdb",
    )
    parser.add_argument("file", metavar="FILE", help="the file that the error names")
    parser.add_argument("--pdb", action="store_true", help="open the debugger where the call raises")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make the call; 1 if it raises, as it did on its worker, 2 for a file that cannot be used."""
    names: list[str] = []

    def tell(call: twinkle_remote.FailedCall) -> None:
        here = call.worker
        print(f"{call.name} of rank {here.rank} of {here.size} in group {here.group!r} raised {call.type_name}:")
        print(f"  {call.message}\nit runs again here, after the constructor:", flush=True)
        names.append(call.type_name)

    try:
        twinkle_remote.replay(args.file, tell)
    except Exception as error:
        if not names:
            print(f"twinkle replay: {error}", file=sys.stderr)
            return 2
        traceback.print_exc()
        if args.pdb:
            import pdb

            pdb.post_mortem(error.__traceback__)
        return 1
    print("it did not fail here: earlier calls, other ranks or process groups were part of it")
    return 0
