"""The fork server of a node: it loads the libraries of workers once, and becomes a worker for each request.

A request is for a process with exactly this process's environment, except for the job that it works for; others are
refused. Ray reads the job when it is loaded: here it finds none, as in workers that it starts before there is a job,
and gives each worker its job with its first task. The server ends when the process that asks for workers ends, or when
it has had no child for a while.
"""

from __future__ import annotations

import gc
import os
import re
import runpy
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

MODULES = "TWINKLE_FORKSERVER_MODULES"  # what is loaded with Ray and the worker's own modules, as "numpy,torch"
IDLE_SECONDS = "TWINKLE_FORKSERVER_IDLE_SECONDS"  # how long a server without a child waits for the next worker
_OWN_MODULES = ("ray", "twinkle_ray.workers.rank_actor", "twinkle_remote.component.construct")
# Ray's worker loads these where they are installed, to be able to serialize their objects.
_OF_RAYS_WORKER = (
    *("argparse", "numpy", "pyarrow", "pyarrow.json", "starlette.datastructures"),
    *("pydantic", "pydantic.deprecated.class_validators", "pydantic.main", "pydantic.types", "pydantic.v1"),
)
_LONGEST_IDLE = 1_000_000  # seconds
_READ_SECONDS = 5.0
_LONGEST_REQUEST = 1 << 20  # bytes
_THREADS = "OMP_NUM_THREADS"
_MADE, _REFUSED, _JOB = b"1", b"0", b"RAY_JOB_ID="  # as in launcher.py
_NO_JOB = b"ffffffff"
_NAME = re.compile(r"([0-9a-f]+)-([0-9]+)-[0-9a-f]{8}(\.new|\.failed)?")  # the launcher gives it to a server
_DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/", "/dev/accel")


class _Server:
    """Serves until nobody needs it.

    Args:
        path: Path of its socket.
        asker: Id of the process that asks for workers.
        scripts: Folder of the scripts that it runs.
    """

    def __init__(self, path: str, asker: int, scripts: str) -> None:
        self._path, self._scripts, self._idle_seconds = path, scripts, idle_seconds()
        self._environment = _shared(os.fsencode(f"{name}={value}") for name, value in os.environ.items())
        self._asker = os.pidfd_open(asker)
        self._children: dict[int, int] = {}  # process ids by their descriptors
        _set_job([_JOB + _NO_JOB])
        gc.disable()  # it would walk again and again through modules that live on
        _load(os.environ.get(MODULES, ""))
        import_module("twinkle_ray.forkserver.forked").set_asker(self._asker)
        if threading.active_count() > 1:
            raise RuntimeError(f"a module has started threads, which a fork would lack: {threading.enumerate()}")
        if opened := _opened_devices():
            raise RuntimeError(f"a module has opened devices, which a fork could not use: {opened}")
        gc.collect()
        gc.freeze()  # a pass of the collector would copy every page
        gc.enable()
        _remove_old(path)
        with suppress(FileNotFoundError):  # there only if a server was killed at this place
            os.unlink(f"{path}.new")
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(f"{path}.new")
        self._listener.listen(128)
        os.rename(f"{path}.new", path)  # who can connect is served
        _let_go_of_streams()

    def serve(self) -> list[str] | None:
        """Serve requests; return the arguments in each new process, and None in the server at its end."""
        poll = select.poll()
        for descriptor in (self._asker, self._listener.fileno()):
            poll.register(descriptor, select.POLLIN)
        since = time.monotonic()
        while self._children or time.monotonic() < since + self._idle_seconds:
            for descriptor, _ in poll.poll(1000 * self._idle_seconds):
                if descriptor == self._asker:
                    os.unlink(self._path)
                    return None
                if descriptor == self._listener.fileno():
                    arguments = self._answer(poll)
                    if arguments is not None:
                        return arguments
                    since = time.monotonic()
                else:
                    poll.unregister(descriptor)
                    os.waitpid(self._children.pop(descriptor), 0)
                    os.close(descriptor)
                    since = time.monotonic()
        os.unlink(self._path)
        return None

    def _answer(self, poll: select.poll) -> list[str] | None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(_READ_SECONDS)
            streams: list[int] = []
            try:
                request, streams, _, _ = socket.recv_fds(connection, _LONGEST_REQUEST, 3)
                folder, count, *rest = request.split(b"\0")
                arguments = [os.fsdecode(argument) for argument in rest[: int(count)]]
                environment = rest[int(count) :]
                if len(streams) == 3 and _shared(environment) == self._environment and self._runs(arguments[0]):
                    child = os.fork()
                    if child == 0:
                        self._become(connection, streams, folder)
                        _set_job(environment)
                        return arguments
                    descriptor = os.pidfd_open(child)
                    self._children[descriptor] = child
                    poll.register(descriptor, select.POLLIN)
                else:
                    connection.send(_REFUSED)
            except (OSError, ValueError):  # the launcher has gone, or there is no room for a process: it starts one
                with suppress(OSError):  # nobody hears it
                    connection.send(_REFUSED)
            for stream in streams:
                os.close(stream)
        return None

    def _runs(self, script: str) -> bool:
        return os.path.dirname(script) == self._scripts

    def _become(self, connection: socket.socket, streams: list[int], folder: bytes) -> None:
        """Become a process as one that the asker has started itself, and say so; end where that cannot be."""
        try:
            os.setpgid(0, 0)  # Ray ends the group of a worker with it
            self._listener.close()
            for descriptor in self._children:
                os.close(descriptor)
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.chdir(folder)
            connection.send(_MADE)
        except OSError:  # the launcher has gone, or the folder has: this is no server, and must not become one
            os._exit(1)
        if "numpy.random" in sys.modules:  # random draws anew by itself
            sys.modules["numpy.random"].seed()


def idle_seconds() -> float:
    """Return how long a server waits for its next worker; a minute where nothing is said.

    Raises:
        ValueError: What is said is not a number of seconds from 0 to 1000000.
    """
    text = os.environ.get(IDLE_SECONDS, "60")
    with suppress(ValueError):  # no number: refused below with the rule
        if 0 <= (seconds := float(text)) <= _LONGEST_IDLE:
            return seconds
    raise ValueError(f"{IDLE_SECONDS}={text!r} must be a number of seconds from 0 to {_LONGEST_IDLE}: use 60")


def _let_go_of_streams() -> None:
    """Hold the standard streams of who asked first no longer: somebody may wait for their end."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    os.close(nothing)


def _remove_old(path: str) -> None:
    """Remove files next to a server's socket that are of servers which were killed before they could remove them.

    Other containers may have theirs here, too, for processes that cannot be seen from here.
    """
    own = os.path.basename(path).partition("-")[0]
    for entry in list(os.scandir(os.path.dirname(path))):
        name = _NAME.fullmatch(entry.name)
        if name is None:  # a cluster may have its files here, too
            continue
        space, asker, end = name.groups()
        there = os.path.exists(f"/proc/{asker}") if space == own else end == ".new" or _listens(entry.path)
        if not there:
            with suppress(OSError):  # another server has removed it, or a folder has such a name
                os.unlink(entry.path)


def _listens(path: str) -> bool:
    """Whether a server may be behind a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.setblocking(False)
        try:
            connection.connect(path)
        except ConnectionRefusedError:  # its server was killed
            return False
        except OSError:  # it has much to do, or has been removed
            return True
    return True


def _opened_devices() -> list[str]:
    """The accelerators that this process has opened, as `/dev/nvidia0`."""
    opened = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the folder's own descriptor is closed by now
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [path for path in opened if path.startswith(_DEVICES)]


def _shared(environment: Iterable[bytes]) -> list[bytes]:
    """The variables that workers of all jobs have in their environment, sorted."""
    return sorted(entry for entry in environment if not entry.startswith(_JOB))


def _set_job(environment: Iterable[bytes]) -> None:
    name = _JOB.rstrip(b"=")
    os.environb.pop(name, None)
    for entry in environment:
        if entry.startswith(_JOB):
            os.environb[name] = entry.removeprefix(_JOB)


def _load(names: str) -> None:
    """Import modules as a worker does: those of `names` after Ray has set one thread."""
    for name in _OWN_MODULES:
        import_module(name)
    for name in _OF_RAYS_WORKER:
        with suppress(ImportError):  # then Ray's worker does without it, too
            import_module(name)
    given = os.environ.get(_THREADS)
    os.environ.setdefault(_THREADS, "1")
    for name in filter(None, names.split(",")):
        import_module(name)
    if given is None:
        del os.environ[_THREADS]


def main() -> None:
    """Serve; in a new process, run what was asked for."""
    path, asker, scripts = sys.argv[1:]
    if not sys.flags.safe_path:
        sys.path[0] = scripts  # where a script is run, its folder stands there
    arguments = _Server(path, int(asker), scripts).serve()
    if arguments is not None:
        sys.argv[:] = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main()
