"""`release` ends a component before the session ends."""

from __future__ import annotations

import gc

from twinkle_remote.call.start import start
from twinkle_remote.protocol.component import component_of, is_component_type, is_handle
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.runtime import running

_DROP = FunctionSpec(dispatch="all")


def release(component: object) -> None:
    """Drop a component on all its workers after its earlier calls, which frees its memory there.

    Later calls of the component are errors; its earlier results can still be fetched. Nothing happens for an object
    that was built in this process, or that is released already.

    Args:
        component: A component.

    Raises:
        TypeError: The argument is not a component.
        TwinkleError: As for any call.
    """
    found = component_of(component)
    if not is_handle(component):
        if found is None and not is_component_type(type(component)):
            raise TypeError(f"release takes a component, got {type(component).__name__} {component!r:.60}")
        return
    assert found is not None
    runtime = running()
    if runtime.is_released(found):
        return
    call = start(found, "drop", None, f"{found.name}.release", _DROP)
    runtime.mark_released(found)
    call.wait()
    gc.collect()  # on threads, the freed objects may be in reference cycles
