"""The subjects for a backend that names what it carries: the classes to serve, and the types of their values."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from tests.conformance import subjects
from tests.conformance.subjects.echo import Batch, Holder, Pair

from twinkle_remote.protocol.messages import is_component_type

if TYPE_CHECKING:
    from collections.abc import Sequence

VALUE_TYPES: tuple[type, ...] = (Batch, Pair, Holder)


def served_classes() -> Sequence[type]:
    """All components of the suite."""
    modules = [
        importlib.import_module(f"{subjects.__name__}.{one.name}") for one in pkgutil.iter_modules(subjects.__path__)
    ]
    found = [value for module in modules for value in vars(module).values() if isinstance(value, type)]
    return list(dict.fromkeys(cls for cls in found if is_component_type(cls)))
