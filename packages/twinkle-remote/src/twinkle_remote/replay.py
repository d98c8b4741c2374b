"""Runs a saved call again: its component is built in this process, in the place of its worker."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.memory import Memory
from twinkle_remote.protocol.failure import WorkerInfo
from twinkle_remote.protocol.messages import Task
from twinkle_remote.sessions.definitions import defined_in_main
from twinkle_remote.sessions.seeding import seed_process
from twinkle_remote.worker.failed_call import FailedCall, read
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_INSTANCE = "replayed"


def replay(path: str | os.PathLike[str], tell: Callable[[FailedCall], object] = lambda call: None) -> Any:
    """Build the component of a saved call, and make the call; returns what it returns, raises what it raises.

    Only the constructor and this one call run. Changes by earlier calls are missing. So are process groups, the other
    ranks, and the results and components that the arguments name. The file is a pickle, and loading it can run code: do
    not use a file from a source that you do not trust.

    Args:
        path: A file that `initialize(..., save_failures=folder)` wrote, and that nobody else can write.
        tell: Called with the saved call before it runs.

    Raises:
        TwinkleError: Others can write the file, or it is no saved call; or the program cannot be read for its classes.
        Exception: What the constructor or the method raises.
    """
    call = read(path)
    tell(call)
    sys.path.extend(each for each in call.paths if each not in sys.path)
    with _main_of(call):
        return _run(call)


def _run(call: FailedCall) -> Any:
    seed_process(call.seed)
    store = Memory()
    worker = Worker(WorkerInfo(call.group, call.rank, call.world_size), store, live=True, shared=False)
    cls, args, kwargs, mesh = pickle.loads(call.constructor)
    outcome = worker.run(Task("create", _INSTANCE, call.name, cls, args, kwargs, mesh=mesh))
    if outcome.failure is None and call.method is not None:
        args, kwargs = pickle.loads(call.arguments)
        outcome = worker.run(Task("method", _INSTANCE, call.name, call.method, args, kwargs, on_loop=call.on_loop))
    if outcome.failure is not None and outcome.failure.live is not None:
        raise outcome.failure.live
    return store.get(outcome.payload)[0]


def _main_of(call: FailedCall) -> AbstractContextManager[None]:
    """A block in which `__main__` has what the call's program defines there."""
    own = os.path.abspath(getattr(sys.modules["__main__"], "__file__", None) or "")
    return nullcontext() if own == call.main or not os.path.exists(call.main) else defined_in_main(call.main, call.argv)
