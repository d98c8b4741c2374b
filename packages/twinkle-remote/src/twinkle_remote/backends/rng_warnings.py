"""Warns when several threads of a process draw from their shared random generators."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger("twinkle.remote")
_ADVICE = (
    "ranks are threads of one process and share its generators, so what each of them draws from %s may be mixed and "
    "differ from run to run; draw from a generator of the component's own (random.Random, numpy.random.default_rng, "
    'torch.Generator), or run in processes (mode "ray")'
)


class RngWarnings:
    """Warns once for each method that draws on several threads."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn_mixed(self, method: str, libraries: Sequence[str]) -> None:
        """Warn, once for each method.

        Args:
            method: Class.method.
            libraries: Libraries whose generators it used; without any, nothing is logged.
        """
        if libraries and method not in self._warned:
            self._warned.add(method)
            drew = " and ".join(libraries)
            _log.warning(f"{method} ran while random numbers were drawn on several ranks: {_ADVICE}", drew)
