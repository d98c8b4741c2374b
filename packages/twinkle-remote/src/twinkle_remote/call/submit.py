"""Other ways to call: always lazily, or a function on every worker of a component."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from twinkle_remote.call.send import start
from twinkle_remote.failures.frames import call_line
from twinkle_remote.lazy.lazy import Lazy
from twinkle_remote.protocol.call import Call, component_of
from twinkle_remote.protocol.spec import SPEC, SUBMIT, FunctionSpec
from twinkle_remote.sessions.current import raise_not_retrieved

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.call import Component

P = ParamSpec("P")
R = TypeVar("R")


@overload
def submit(bound_method: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs) -> Lazy[R]: ...
@overload
def submit(bound_method: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Lazy[R]: ...
def submit(bound_method: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call a remote function lazily, also with `lazy_collect=False`; the typed form of a lazy call.

    Args:
        bound_method: `component.method`.
        *args: Its positional arguments.
        **kwargs: Its keyword arguments.

    Raises:
        TypeError: The argument is not a bound remote function of a component.
    """
    remote_part(bound_method)
    return getattr(bound_method, SUBMIT)(bound_method.__self__, args, kwargs)


def remote_part(bound_method: Any) -> tuple[Component, FunctionSpec]:
    """The component and the options of a bound remote function.

    Raises:
        TypeError: The argument is not a remote function, or its object was built in this process without a session.
    """
    spec = getattr(bound_method, SPEC, None)
    component = component_of(getattr(bound_method, "__self__", None))
    if spec is None or component is None:
        raise TypeError(
            f"expected a remote function of a component, as in submit(actor.update, batch), got {bound_method!r}"
        )
    return component, spec


def start_on_workers(
    handle: object,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]] | None = None,
    timeout: float | None = None,
    *,
    ranks: Sequence[int] | None = None,
    concurrent: bool = False,
    prefetched: bool = False,
) -> PendingCall:
    """Start `function(instance, *args)` on every worker of a component, each with its own arguments.

    Args:
        handle: A component.
        function: A module-level function, so that it pickles; it receives the component's object on that worker.
        arguments: One tuple for each worker, in rank order; None means no arguments.
        timeout: Seconds to the deadline; None for no deadline.
        ranks: Only these workers, ascending; None means all.
        concurrent: Run it while the other calls of the workers do, not after them.
        prefetched: Its result may never be used, so its failure never counts as unseen. Otherwise the caller waits for
            it.

    Raises:
        TypeError: `handle` is not a component.
        ValueError: The number of tuples is not the number of workers.
    """
    component = component_of(handle)
    if component is None:
        raise TypeError(f"expected a component, got {type(handle).__name__}")
    if ranks is not None:
        component = replace(component, ranks=tuple(ranks))
    count = len(component.ranks)
    given = [()] * count if arguments is None else list(arguments)
    if len(given) != count:
        raise ValueError(f"{component.name} is on {count} workers, got arguments for {len(given)}")

    def one_each(
        length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        return given[i], {}

    spec = FunctionSpec(dispatch=one_each, collect=_as_list, timeout=timeout, concurrent=concurrent)
    name = f"{component.name}.{getattr(function, '__name__', 'function')}"
    call = Call("function", component, function, name, spec, call_line())
    return start(call, held=True, prefetched=prefetched)


def _as_list(results: list[Any], mesh: DeviceMesh | None) -> list[Any]:
    return results


def run_on_workers(
    handle: object,
    function: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]] | None = None,
    timeout: float | None = None,
) -> list[Any]:
    """`start_on_workers` with the list of the results, in rank order; waits for them.

    Raises:
        TwinkleError: As for any call.
    """
    raise_not_retrieved()
    return Lazy(start_on_workers(handle, function, arguments, timeout)).result()
