"""Start a node of a Ray cluster whose workers are forks: python -m twinkle_ray.forkserver start --head ...

The arguments are those of the command `ray`. The node's server loads numpy and torch with Ray; the variable
TWINKLE_FORKSERVER_MODULES names other modules, or none. TWINKLE_FORKSERVER_IDLE_SECONDS=60 is how long the server waits
for the next worker before it ends.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
from pathlib import Path

from twinkle_ray.forkserver.interpreter import check_start_method, forking, node_folder
from twinkle_ray.forkserver.server import MODULES, idle_seconds

_USUAL = ("numpy", "torch")


def main() -> None:
    """Run `ray` with these arguments."""
    if check_start_method("forkserver") == "spawn":
        raise SystemExit(
            "a fork server needs Linux 5.3 or newer and its os.pidfd_open; start the node with `ray start`"
        )
    try:
        idle_seconds()
    except ValueError as error:
        raise SystemExit(str(error)) from None
    command = Path(sysconfig.get_path("scripts")) / "ray"
    sys.argv[0] = str(command)
    modules = os.environ.get(MODULES)
    with forking(node_folder(), _USUAL if modules is None else modules.split(",")):
        runpy.run_path(str(command), run_name="__main__")


if __name__ == "__main__":
    main()
