"""`release` ends a component before the session ends."""

from __future__ import annotations

import gc

from twinkle_remote.call.start import start
from twinkle_remote.protocol.component import component_of, is_component_type, is_handle
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.runtime import running

_DROP = FunctionSpec(dispatch="all")


def release(component: object) -> None:
    """Drop a component on all its workers, after the calls that were made before, so that its memory is free there.

    Calls of it afterwards are errors; results that were not fetched yet stay. For an object that was built in this
    process, and for one that is released already, it does nothing.

    Args:
        component: A component.

    Raises:
        TypeError: It is none.
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
    gc.collect()  # what was freed on threads may stand in cycles
