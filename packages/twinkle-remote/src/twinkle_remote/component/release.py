"""`release` ends a component before the session ends."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from twinkle_remote.call.send import start
from twinkle_remote.errors import TwinkleError
from twinkle_remote.failures.frames import call_line
from twinkle_remote.protocol.call import Call, component_of, is_component_type, is_handle
from twinkle_remote.protocol.spec import FunctionSpec
from twinkle_remote.sessions.current import running

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.call.pending.pending_call import PendingCall

_DROP = FunctionSpec(dispatch="all")


def release(component: object) -> None:
    """Remove a component from all its workers after its earlier calls, and free its memory there.

    Later calls of the component are errors; its earlier results can still be fetched. The function does nothing for an
    object that was built in this process, or that is already released.

    Args:
        component: A component.

    Raises:
        TypeError: The argument is not a component.
        TwinkleError: As for any call.
    """
    call = _drop(component)
    if call is not None:
        call.wait()
        gc.collect()  # on threads, the freed objects may be in reference cycles


def release_all(components: Iterable[object]) -> Sequence[TwinkleError]:
    """Drop several components at once; see `release`.

    Args:
        components: The components.

    Returns:
        The errors of those that could not be dropped.
    """
    errors: list[TwinkleError] = []
    calls = []
    for component in components:
        try:
            calls.append(_drop(component))
        except TwinkleError as error:
            errors.append(error)
    for call in calls:
        try:
            if call is not None:
                call.wait()
        except TwinkleError as error:
            errors.append(error)
    gc.collect()
    return errors


def _drop(component: object) -> PendingCall | None:
    """Begin to drop a component; None if there is nothing to do."""
    found = component_of(component)
    if not is_handle(component):
        if found is None and not is_component_type(type(component)):
            raise TypeError(f"release takes a component, got {type(component).__name__} {component!r:.60}")
        return None
    assert found is not None
    runtime = running()
    if runtime.has_released(found):
        return None
    call = start(Call("drop", found, None, f"{found.name}.release", _DROP, call_line()), held=True)
    runtime.released.add((found.group, found.instance))
    return call
