"""Processes that are forked from one with a connection to Ray: the connection and the cluster stay with the parent."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys

import ray

from twinkle_remote.errors import TwinkleError

_parent = 0


def leave_to_parent() -> None:
    """Make the end of a forked process harmless: without this it ends the parent's cluster, or crashes.

    Ray's exit function ends the cluster. Destructors of Ray's library crash, because its threads are not in the fork.
    """
    global _parent
    _parent = os.getppid()
    atexit.unregister(ray.shutdown)
    atexit.register(_keep_what_ray_holds)
    if sys.platform == "linux":
        _skip_destructors()


def _keep_what_ray_holds() -> None:
    """Keep the interpreter from freeing the objects of Ray's modules at its end."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "ray":
            for value in list(vars(module).values()):
                if type(value).__module__.partition(".")[0] == "ray":
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


def _skip_destructors() -> None:
    """End the process with its status right after the interpreter: the last handler of on_exit runs first."""
    libc = ctypes.CDLL(None)
    try:
        on_exit, now = libc.on_exit, libc._exit
    except AttributeError:  # not in every C library
        return
    on_exit.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    on_exit(ctypes.cast(now, ctypes.c_void_p), None)


def check_not_forked() -> None:
    """Check that this process may connect to Ray.

    Raises:
        TwinkleError: It was forked from a process with a connection to Ray.
    """
    if _parent:
        raise TwinkleError(
            f"process {os.getpid()} was forked from process {_parent}, whose connection to Ray works there alone: "
            'start this process by multiprocessing.get_context("spawn") to have a session of its own'
        )
