"""Warns of modules that the program has loaded again: workers that have loaded them before run the old code."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_log = logging.getLogger("twinkle.remote")
_PATHS = sysconfig.get_paths()
_INSTALLED = tuple(_PATHS[kind] + os.sep for kind in ("stdlib", "platstdlib", "purelib", "platlib"))


class ReloadedModules:
    """The program's own modules as they were when a component was built that may have loaded them."""

    def __init__(self) -> None:
        self._specs: dict[str, ModuleSpec] = {}

    def look(self) -> None:
        """Warn of those that were loaded again since; the workers' own modules stay as they are."""
        again = []
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            file = getattr(module, "__file__", None)
            if spec is None or not isinstance(file, str) or os.path.abspath(file).startswith(_INSTALLED):
                continue
            if self._specs.setdefault(name, spec) is not spec:
                self._specs[name] = spec
                again.append(name)
        if again:
            _log.warning(
                "%s: loaded again in this program, but workers that have loaded it before run the old code, also for "
                "new components: call shutdown() and initialize() to start new workers",
                ", ".join(sorted(again)),
            )
