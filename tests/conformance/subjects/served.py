"""The subjects for a backend that names what it carries: the classes to serve, and the types of their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.subjects import (
    aliases,
    callers,
    cancelled,
    classes,
    components,
    coroutines,
    echo,
    faults,
    kinds,
    lifetimes,
    loops,
    streamed,
    tables,
)

from twinkle_remote.protocol.call import is_component_type

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

_MODULES: tuple[ModuleType, ...] = (
    aliases,
    callers,
    cancelled,
    classes,
    components,
    coroutines,
    echo,
    faults,
    kinds,
    lifetimes,
    loops,
    streamed,
    tables,
)
VALUE_TYPES: tuple[type, ...] = (echo.Batch, echo.Pair, echo.Side, echo.Holder)


def served_classes() -> Sequence[type]:
    """All components of the suite."""
    found = [value for module in _MODULES for value in vars(module).values() if isinstance(value, type)]
    return list(dict.fromkeys(cls for cls in found if is_component_type(cls)))
