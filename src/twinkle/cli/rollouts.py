"""`twinkle rollouts`: makes a page of what a `RolloutSink` has kept."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `rollouts` command."""
    parser = subparsers.add_parser(
        "rollouts",
        help="make a page of what was sampled, which a browser shows without a network",
        description="Make one HTML file of the rows that RolloutSink(path).log(rollouts, step=n) has kept: by step and "
        "prompt, with the rewards, and the tokens coloured by any column.",
        epilog="Example: twinkle rollouts run/rollouts.jsonl --out page.html",
    )
    parser.add_argument("file", metavar="FILE", help="the file of the sink")
    parser.add_argument("--out", metavar="PAGE", help="where the page is written; FILE with .html if unset")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the page; 2 for a file that cannot be used."""
    from twinkle.cli.rollout_page import rollout_page

    page = Path(args.out) if args.out else Path(args.file).with_suffix(".html")
    try:
        page.write_text(rollout_page(args.file), encoding="utf-8")
    except (OSError, ValueError) as error:
        print(f"twinkle rollouts: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0
