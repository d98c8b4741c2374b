"""Stands in for the interpreter where Ray starts workers: it asks the fork server, or becomes the interpreter itself.

Run as `python -I -S launcher.py FOLDER ARGUMENTS`, it imports little: it runs once for each worker.
"""

import fcntl
import os
import socket
import sys
import time
from zlib import crc32

# Ray's script of a worker. If it had another name in some version, workers would start as without this package.
_SCRIPT = "default_worker.py"
_START_SECONDS = 30.0  # for a server to load its modules
_ANSWER_SECONDS = 30.0
_POLL_SECONDS = 0.01
_ATTEMPTS = 3  # a server that ends at this moment does not answer: there is another one then
_MADE, _REFUSED = b"1", b"0"
_JOB = b"RAY_JOB_ID="  # workers of all jobs are forks of one server
_SERVER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server.py")


def main() -> None:
    """Have the fork server start the process, or become it."""
    folder, arguments = sys.argv[1], sys.argv[2:]
    if arguments and os.path.basename(arguments[0]) == _SCRIPT:
        _fork(folder, arguments)
    os.execv(sys.executable, [sys.executable, *arguments])


def _fork(folder: str, arguments: list[str]) -> None:
    """End with status 0 after the server has made the process; return if there is none, and none will be."""
    environment = sorted(os.fsencode(f"{name}={value}") for name, value in os.environ.items())
    asker = os.getppid()
    if asker == 1:  # whoever asked for the worker has ended, and a server for the first process would go on without it
        return
    try:
        here = os.getcwdb()
    except OSError:  # it is gone
        return
    request = b"\0".join([here, b"%d" % len(arguments), *map(os.fsencode, arguments), *environment])
    shared = b"0".join(entry for entry in environment if not entry.startswith(_JOB))
    path = os.path.join(folder, f"{_space('pid')}-{asker}-{crc32(_space('net', 'mnt').encode() + shared):08x}")
    for _ in range(_ATTEMPTS):
        connection = _connect(folder, path, [path, str(asker), os.path.dirname(arguments[0])])
        if connection is None:
            return
        with connection:
            try:
                socket.send_fds(connection, [request], [0, 1, 2])
            except (BrokenPipeError, ConnectionResetError):  # the server ends
                continue
            except OSError:  # too long, or a standard stream is closed: nothing was sent
                return
            try:
                answer = connection.recv(1)
            except TimeoutError:  # it may start later: whoever asked for a worker asks for another one in its own time
                os._exit(1)
            except OSError:  # the server has ended
                continue
        if answer == _MADE:
            os._exit(0)
        if answer == _REFUSED:
            return


def _space(*kinds: str) -> str:
    """The namespaces of this process: containers may share a folder, and one's server is not the other's."""
    found = []
    for kind in kinds:
        try:
            found.append(f"{os.stat(f'/proc/self/ns/{kind}').st_ino:x}")
        except OSError:  # a system without them
            found.append("0")
    return "-".join(found)


def _connect(folder: str, path: str, served: list[str]) -> socket.socket | None:
    """A connection to the server, which is started if there is none; None if it does not start."""
    connection = _open(path)
    if connection is not None:
        return connection
    until = time.monotonic() + _START_SECONDS
    server = 0
    failed = f"{path}.failed"
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)  # its end ends the lock
    while connection is None and time.monotonic() < until and not os.path.exists(failed):
        if server == 0 and _locked(lock):
            connection = _open(path)  # another launcher had the lock before
            if connection is None:
                command = [sys.executable, _SERVER, *served]
                server = os.posix_spawn(sys.executable, command, os.environ, setsid=True)
        elif server and os.waitpid(server, os.WNOHANG)[0]:
            open(failed, "w").close()  # the others need not try
            break
        time.sleep(_POLL_SECONDS)
        connection = connection or _open(path)
    os.close(lock)
    return connection


def _open(path: str) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(_ANSWER_SECONDS)
    try:
        connection.connect(path)
    except OSError:  # nobody listens
        connection.close()
        return None
    return connection


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:  # another launcher has it
        return False
    return True


if __name__ == "__main__":
    main()
