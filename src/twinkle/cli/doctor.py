"""`twinkle doctor`: reports versions, devices, limits and settings of this machine, and what to fix."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING

from twinkle.cli.device_findings import device_findings, markdown_row
from twinkle.cli.finding import Finding
from twinkle.cli.host_findings import host_findings
from twinkle.cli.ray_findings import ray_findings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator

_DISTRIBUTIONS = (
    "twinkle-all",
    "twinkle-mesh",
    "twinkle-remote",
    "twinkle-data",
    "twinkle-ray",
    "twinkle-http",
    "twinkle-engines",
    "ray",
    "torch",
    "numpy",
)
_WIDTH = len("host: weights to vLLM")
_FROM_SOURCE = "install it where the others came from: a checkout, a folder of wheels or a git URL"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `doctor` command."""
    parser = subparsers.add_parser("doctor", help="show versions, devices and limits, and what would help")
    parser.add_argument(
        "--gpu", action="store_true", help="try each path on the GPUs that are there, in a minute or two"
    )
    parser.add_argument("--on-host", action="store_true", help="try the same paths on this host's CPUs")
    parser.add_argument(
        "--verbose", action="store_true", help="with --gpu or --on-host: print all that the checks print"
    )
    parser.add_argument(
        "--markdown", action="store_true", help="with --gpu or --on-host: a row for the README's table, too"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the report; 1 when something needs a remedy."""
    environment = dict(os.environ)  # before Ray is loaded, which sets variables of its own
    findings = [*_versions(), *_backends(), *_devices(), *host_findings(), *ray_findings(environment)]
    width = max(_WIDTH if args.gpu or args.on_host else 0, *(len(finding.what) for finding in findings))
    count = _show(findings, width)
    rows = []
    for chosen, on_host in ((args.on_host, True), (args.gpu, False)):
        if chosen:
            tried = list(_passed_on(device_findings(on_host=on_host, verbose=args.verbose), width))
            count += sum(bool(one.remedy) for one in tried)
            rows.append(markdown_row(tried, on_host=on_host))
    if args.markdown:
        print("", *rows, sep="\n")
    print(f"\n{count} to fix, marked by !" if count else "\nnothing stands in the way")
    return 1 if count else 0


def _show(findings: Iterable[Finding], width: int) -> int:
    """Print findings, each as it comes, and return how many need a remedy."""
    return sum(bool(finding.remedy) for finding in _passed_on(findings, width))


def _passed_on(findings: Iterable[Finding], width: int) -> Iterator[Finding]:
    """The findings, each printed as it comes."""
    for finding in findings:
        print(f"{'!' if finding.remedy else ' '} {finding.what:<{width}}  {finding.found}", flush=True)
        if finding.remedy:
            print(f"  {'':<{width}}  -> {finding.remedy}", flush=True)
        yield finding


def _versions() -> Iterator[Finding]:
    yield Finding("python", f"{platform.python_version()} ({sys.executable})")
    for name in _DISTRIBUTIONS:
        try:
            yield Finding(name, version(name))
        except PackageNotFoundError:
            ours = name.startswith("twinkle-")
            yield Finding(name, "not installed", _FROM_SOURCE if ours else f"pip install {name}")


def _backends() -> Iterator[Finding]:
    for entry in sorted(entry_points(group="twinkle.backends"), key=lambda entry: entry.name):
        try:
            entry.load()
        except Exception as error:  # an import can raise anything, and the user must see it
            yield Finding(f"backend {entry.name}", f"does not load: {type(error).__name__}: {error}", "reinstall it")
        else:
            yield Finding(f"backend {entry.name}", entry.value)


def _devices() -> Iterator[Finding]:
    yield Finding("CPUs", f"{len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count()}")
    try:
        import torch
    except ImportError:
        return
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(i) for i in range(count)})
    yield Finding("GPUs", f"{count} {', '.join(names)}".strip() if count else "none: groups of CPUs and Gloo work")
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield Finding(
        "collectives", f"gloo{' and nccl' if nccl else ''}", "install a torch with NCCL" if count and not nccl else ""
    )
