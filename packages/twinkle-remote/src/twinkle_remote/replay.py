"""Runs a saved call again: its component is built in this process, in the place of its worker."""

from __future__ import annotations

import os
import pickle
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from twinkle_remote.backends.memory import Memory
from twinkle_remote.errors import TwinkleError
from twinkle_remote.protocol.messages import Task
from twinkle_remote.sessions.initialize import DefinitionsEnd, reading_definitions
from twinkle_remote.sessions.seeding import begin_session
from twinkle_remote.worker.saved_calls import FailedCall
from twinkle_remote.worker.worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def replay(path: str | os.PathLike[str], tell: Callable[[FailedCall], object] = lambda call: None) -> Any:
    """Build the component of a saved call, and make the call; returns what it returns, raises what it raises.

    Only the constructor and this one call run. Changes by earlier calls are missing. So are process groups, the other
    ranks, and the results and components that the arguments name. The file is a pickle, and loading it can run code: do
    not use a file from a source that you do not trust.

    Args:
        path: A file that `initialize(..., save_failures=folder)` wrote.
        tell: Called with the saved call before it runs.

    Raises:
        TwinkleError: The file is no saved call.
        Exception: What the constructor or the method raises, or the program before its session.
    """
    try:
        call = pickle.loads(Path(path).read_bytes())
    except (pickle.UnpicklingError, EOFError, ValueError) as error:
        raise TwinkleError(f"{os.fspath(path)} is no saved call: {type(error).__name__}: {error}") from None
    if not isinstance(call, FailedCall):
        raise TwinkleError(f"{os.fspath(path)} holds a {type(call).__name__}, and no saved call")
    tell(call)
    sys.path.extend(each for each in call.session.paths if each not in sys.path)
    with _main_of(call):
        return _run(call)


def _run(call: FailedCall) -> Any:
    begin_session(call.session.seed)
    store = Memory()
    worker = Worker(call.worker, store, live=True, shared=False)
    cls, args, kwargs, mesh, seed = pickle.loads(call.constructor)
    outcome = worker.run(Task("create", "replayed", call.name, cls, args, kwargs, mesh=mesh, seed=seed))
    if outcome.failure is None and call.method is not None:
        args, kwargs = pickle.loads(call.arguments)
        outcome = worker.run(Task("method", "replayed", call.name, call.method, args, kwargs, on_loop=call.on_loop))
    if outcome.failure is not None and outcome.failure.live is not None:
        raise outcome.failure.live
    return store.get(outcome.payload)[0]


@contextmanager
def _main_of(call: FailedCall) -> Iterator[None]:
    """A block in which `__main__` has what the call's program defines, as far as its session would begin."""
    path, here, command = call.session.main, sys.modules["__main__"], sys.argv
    if not os.path.exists(path) or os.path.abspath(getattr(here, "__file__", None) or "") == path:
        yield
        return
    module = ModuleType("__mp_main__")  # as multiprocessing names it: a part for `__main__` does not run
    module.__file__ = path
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv = [path, *call.session.argv]
    try:
        with reading_definitions(), suppress(DefinitionsEnd):  # the rest is the session
            exec(compile(Path(path).read_bytes(), path, "exec"), module.__dict__)
        yield
    finally:
        sys.modules["__main__"], sys.argv = here, command
