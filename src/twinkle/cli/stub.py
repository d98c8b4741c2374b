"""`twinkle stub`: prints a typed stub of the classes that a server serves."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import twinkle
import twinkle_remote
from twinkle.cli.token_file import TokenFileError, given_tokens

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `stub` command."""
    parser = subparsers.add_parser(
        "stub",
        allow_abbrev=False,  # "--token" must not mean "--token-file"
        help="print a typed stub of the classes that a server serves",
        description="Print a typed stub of the classes that a server serves, for clients without the server's modules.",
        epilog="Example: twinkle stub https://host:8765 --token-file token > api.py",
    )
    parser.add_argument("url", metavar="URL", help="address of the server")
    parser.add_argument("--token-file", metavar="FILE", help="the server's token; TWINKLE_TOKEN without it")
    parser.add_argument("--tls", metavar="FILE", help="certificates to trust; those of the system without it")
    parser.add_argument("--insecure", action="store_true", help="plain HTTP beyond this machine")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the stub; 1 if the server does not list its classes, 2 for bad arguments."""
    try:
        token = given_tokens(args.token_file)
        if not isinstance(token, str):
            raise TokenFileError("a client has one token: give it by --token-file or TWINKLE_TOKEN")
    except TokenFileError as error:
        print(f"twinkle stub: {error}", file=sys.stderr)
        return 2
    try:
        found = twinkle_remote.stub_of(args.url, token, tls=args.tls, insecure=args.insecure)
    except (twinkle.TwinkleError, ValueError, OSError, ImportError) as error:
        print(f"twinkle stub: {error}", file=sys.stderr)
        return 1
    sys.stdout.write(found)
    return 0
