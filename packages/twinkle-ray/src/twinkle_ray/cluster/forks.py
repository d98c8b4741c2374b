"""A process that was forked from one with a connection to Ray: the connection, and the cluster, are the parent's."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

import ray

from twinkle_remote.errors import TwinkleError

_parent = 0


def leave_to_parent() -> None:
    """Called in the forked process: its end shall neither end the parent's cluster nor be a crash.

    Ray's exit function would do the first. The second is what destructors of its library do where its threads are not.
    """
    global _parent
    _parent = os.getppid()
    atexit.unregister(ray.shutdown)
    atexit.register(_keep_what_ray_holds)
    if sys.platform == "linux":
        _skip_destructors()


def _keep_what_ray_holds() -> None:
    """Have the interpreter's end free nothing that Ray's modules hold."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "ray":
            for value in list(vars(module).values()):
                if type(value).__module__.partition(".")[0] == "ray":
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _skip_destructors() -> None:
    """Have the process end, with its status, right after the interpreter: what on_exit was given last runs first."""
    libc = ctypes.CDLL(None)
    try:
        on_exit, now = libc.on_exit, libc._exit
    except AttributeError:  # not in every C library
        return
    on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    on_exit(ctypes.cast(now, ctypes.c_void_p), None)


def check_not_forked() -> None:
    """See to it that this process may connect to Ray.

    Raises:
        TwinkleError: It has the connection of the process that it was forked from.
    """
    if _parent:
        raise TwinkleError(
            f"process {os.getpid()} was forked from process {_parent}, whose connection to Ray works there alone: "
            'start this process by multiprocessing.get_context("spawn") to have a session of its own'
        )
