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


class DrawWarnings:
    """Warns once for each method that draws on several threads."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, method: str, libraries: Sequence[str]) -> None:
        """Warn, once for each method.

        Args:
            method: Class.method.
            libraries: Libraries whose generators it used; no warning if empty.
        """
        if libraries and method not in self._told:
            self._told.add(method)
            drew = " and ".join(libraries)
            _log.warning(f"{method} ran while random numbers were drawn on several ranks: {_ADVICE}", drew)
