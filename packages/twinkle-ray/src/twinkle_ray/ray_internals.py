"""Parts of Ray beyond its public interface that this package uses, each with the reason.

`tests/ray/test_ray_internals.py` fails when Ray changes one of them; `pyproject.toml` bounds Ray's version.
"""

from __future__ import annotations

import logging
import os
import random
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import ray


def actor_name_marker() -> str:
    """Begin of a line that gives the lines after it a label: Ray takes labels from its own class names only."""
    return str(import_module("ray._private.ray_constants").LOG_PREFIX_ACTOR_NAME)


def visibility_variable(kind: str) -> str | None:
    """The variable that says which devices of a type a process sees, of which only Ray has a table; None for others."""
    manager = import_module("ray._private.accelerators").get_accelerator_manager_for_resource(kind)
    return None if manager is None else str(manager.get_visible_accelerator_ids_env_var())


def free_resources() -> Mapping[str, Mapping[str, float]]:
    """The free resources of each node by its id: `ray.available_resources()` has the sum over all nodes only."""
    found: Mapping[str, Mapping[str, float]] = import_module("ray._private.state").available_resources_per_node()
    return found


def when_out_of_scope(ref: ray.ObjectRef[Any], function: Callable[[], None]) -> bool:
    """Call a function when no process of the cluster refers to a value any more that this process has put.

    The function waits for nothing. Ray frees the value then, and has no public way to report it.

    Returns:
        Whether it will be called; False also where Ray is older than 2.60, which cannot do it.
    """
    core = import_module("ray._private.worker").global_worker.core_worker
    register = getattr(core, "add_object_out_of_scope_callback", None)
    return register is not None and bool(register(ref, lambda _: function()))


def when_answered(ref: ray.ObjectRef[Any], function: Callable[[Any], None]) -> None:
    """Call a function with the value of a ref, or Ray's error, in a thread of Ray's.

    `ObjectRef.future()` does the same, with a future of Python's for each of a call's answers.
    """
    register: Callable[[Callable[[Any], None]], object] = ref._on_completed
    register(function)


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of this process meanwhile, or unset those of None: Ray and NCCL take no others.

    Ray starts the processes of a node with the environment of this one, and NCCL reads its own.
    """
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def on_loopback() -> Iterator[None]:
    """Make Ray's processes listen on the loopback device alone: `ray.init` does so outside of Linux only."""
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def quiet_token() -> Iterator[None]:
    """Silence a line that Ray logs at each start, which advises to turn its token off; no option does."""
    logger = logging.getLogger("ray._private.authentication.authentication_token_setup")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Let Ray draw from a state of `random` that no other process has, and give the program its own state back.

    Ray draws the ids of a driver's subscriptions from `random`. Two drivers of one cluster that begin with the same
    seed have the same ids, and the end of one ends the lines of workers and the errors of the other. Ray's end draws
    too.
    """
    before = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(before)
