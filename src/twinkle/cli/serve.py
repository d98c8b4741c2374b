"""`twinkle serve`: serves remote classes over HTTP, in a session that it starts."""

from __future__ import annotations

import importlib
import logging
import os
import re
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import twinkle

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from types import FrameType

_GROUP = re.compile(r"(?P<name>[^=]+)=(?P<count>\d+)x(?P<type>[A-Za-z]+)(?:/(?P<each>\d+))?(?:@(?P<nodes>\d+))?")
_TERMINATED = 143  # the convention of shells: 128 + the number of SIGTERM
_INTERRUPTED = 130


class _WrongArgumentError(Exception):
    """An argument that does not name what it should; the message says what to use."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `serve` command."""
    parser = subparsers.add_parser(
        "serve",
        allow_abbrev=False,  # "--token" must not mean "--token-file"
        help="serve remote classes over HTTP",
        description="Serve remote classes over HTTP. Prints the address; SIGTERM waits for calls in flight, then ends.",
        epilog="Example: twinkle serve models:Actor models:Sampler --mode ray --group actor=8xGPU --token-file token. "
        "Without --token-file and TWINKLE_TOKEN, a token is made and shown once on standard error.",
    )
    parser.add_argument("classes", nargs="+", metavar="MODULE:CLASS", help="a remote class that clients may use")
    parser.add_argument("--mode", default="local", choices=("local", "threads", "ray"), help="backend (local)")
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="NAME=COUNTxTYPE[/N][@NODES]",
        help="such as actor=8xGPU; /2: two each; @2: on two nodes",
    )
    parser.add_argument("--cluster", metavar="ADDRESS", help="with --mode ray: a cluster that runs, such as auto")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="port; 0 for any free one (8765)")
    parser.add_argument("--token-file", metavar="FILE", help="one token, or lines `tenant token`; mode 600")
    parser.add_argument("--tls", nargs=2, metavar=("CERT", "KEY"), help="files of the certificate and its key")
    parser.add_argument("--insecure", action="store_true", help="plain HTTP beyond this machine")
    parser.add_argument("--lease", type=float, default=60.0, metavar="SECONDS", help="of a client that is gone (60)")
    parser.add_argument("--max-body", type=int, metavar="BYTES", help="of one request (4 GiB)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code."""
    try:
        classes = _classes(args.classes)
        groups = [_group(text) for text in args.group]
        token = _tokens(args.token_file)
        if args.cluster is not None and args.mode != "ray":
            raise _WrongArgumentError(f"--cluster goes with --mode ray, not with --mode {args.mode}")
    except (_WrongArgumentError, ValueError, ImportError) as error:
        return _complain(error, 2)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("twinkle.http").setLevel(logging.INFO)
    options: dict[str, Any] = {"host": args.host, "port": args.port, "token": token, "lease": args.lease}
    options |= {"tls": tuple(args.tls) if args.tls else None, "insecure": args.insecure}
    if args.max_body is not None:
        options["max_body"] = args.max_body
    cluster = {} if args.cluster is None else {"address": args.cluster}
    terminate = partial(_terminate, os.getpid())
    try:
        signal.signal(signal.SIGTERM, terminate)
        with twinkle.session(args.mode, groups=groups, **cluster):
            signal.signal(signal.SIGTERM, terminate)  # Ray has put its own
            return _serve(classes, options)
    except (twinkle.TwinkleError, ValueError, TypeError, OSError, ImportError) as error:
        return _complain(error, 1)
    except SystemExit as end:  # SIGTERM before or after the server ran
        return 0 if end.code == _TERMINATED else _code(end)


def _tokens(path: str | None) -> str | Mapping[str, str] | None:
    """The tokens of a file, or of TWINKLE_TOKEN, which is removed, so that no child inherits it."""
    from twinkle_http.gate import VARIABLE, tokens_of  # no other command needs it

    found = os.environ.pop(VARIABLE, "").strip()
    return found or None if path is None else tokens_of(path)


def _serve(classes: Sequence[type], options: dict[str, Any]) -> int:
    with twinkle.serve(classes, **options) as server:
        try:
            print(server.address, flush=True)
            server.wait()
        except KeyboardInterrupt:
            return _INTERRUPTED
        except SystemExit as end:
            if end.code != _TERMINATED:
                raise
    return 0


def _terminate(owner: int, number: int, frame: FrameType | None) -> None:
    if os.getpid() != owner:  # a forked process, such as a worker of a pool, ends as without this handler
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    raise SystemExit(_TERMINATED)


def _code(end: SystemExit) -> int:
    return end.code if isinstance(end.code, int) else int(end.code is not None)


def _complain(error: object, code: int) -> int:
    print(f"twinkle serve: {error}", file=sys.stderr)
    return code


def _classes(names: Sequence[str]) -> Sequence[type]:
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.insert(0, folder)
    return [_class(name) for name in names]


def _class(name: str) -> type:
    module_name, _, class_name = name.partition(":")
    if not module_name or not class_name:
        raise _WrongArgumentError(f"{name!r} is not valid: it is MODULE:CLASS, such as models:Actor")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name and not module_name.startswith(f"{error.name}."):
            raise _WrongArgumentError(f"{module_name!r} needs the module {error.name!r}, which is not there") from error
        raise _WrongArgumentError(f"there is no module {module_name!r}, here or installed") from None
    except Exception as error:  # a module may raise anything
        raise _WrongArgumentError(f"{module_name!r} does not load: {type(error).__name__}: {error}") from error
    for part in class_name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type):
        raise _WrongArgumentError(f"module {module_name!r} has no class {class_name!r}")
    return found


def _group(text: str) -> twinkle.DeviceGroup:
    match = _GROUP.fullmatch(text)
    if match is None:
        raise _WrongArgumentError(f"--group {text!r} is not valid: it is NAME=COUNTxTYPE, such as actor=8xGPU")
    each, nodes = int(match["each"] or 1), int(match["nodes"]) if match["nodes"] else None
    try:
        return twinkle.DeviceGroup(match["name"], int(match["count"]), match["type"], None, each, nodes)
    except (ValueError, TypeError) as error:
        raise _WrongArgumentError(f"--group {text!r}: {error}") from None
