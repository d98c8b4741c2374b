"""A script that the launcher runs cannot tell a fork from a start, wherever it looks; without a server it is started.

The scripts have the name of Ray's, for which the launcher asks the server; no Ray runs.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_ray.forkserver.interpreter import check_start_method, chosen_start_method, forking, node_folder
from twinkle_ray.forkserver.server import IDLE_SECONDS, MODULES, _opened_devices, idle_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

LIMIT = 120  # seconds
# Prints what it finds around itself, as one line of JSON.
REPORT = """
    import ray, twinkle_ray.workers.rank_actor  # as a worker does, whose script stays in front
    import faulthandler, gc, json, os, signal, sys, threading, __main__
    found = {
        "argv": sys.argv, "path": sys.path, "flags": list(sys.flags), "executable": sys.executable,
        "environment": dict(os.environ), "folder": os.getcwd(), "niceness": os.nice(0),
        "umask": os.umask(0o22), "main": sorted({*vars(__main__)} - {"__annotations__"}), "file": __main__.__file__,
        "is_main": __name__ == "__main__", "threads": threading.active_count(),
        "handlers": [str(signal.getsignal(one)) for one in signal.valid_signals()],
        "blocked": sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, []))),
        "leads_group": os.getpgid(0) == os.getpid(), "collects": gc.isenabled(), "input": sys.stdin.read(),
    }
    import numpy, random, torch, uuid
    from ray import ObjectRef
    own = {
        "pid": os.getpid(), "parent": os.getppid(), "numpy": numpy.random.rand(), "random": random.random(),
        "uuid": uuid.uuid4().hex, "ref": ray._raylet.ObjectRef.from_random().hex(),
        "threads": torch.get_num_threads(),
    }
    print("own " + json.dumps(own), file=sys.stderr, flush=True)
    print("found " + json.dumps(found), flush=True)
"""


class Node:
    """Stands in for the process that starts workers.

    Args:
        folder: Where its interpreter and its scripts are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scripts = folder / "scripts"
        self.scripts.mkdir()

    def start(
        self, script: str, *arguments: str, name: str = "default_worker.py", **environment: str
    ) -> subprocess.Popen[str]:
        """Start the interpreter with a script."""
        path = self.scripts / name
        path.write_text(textwrap.dedent(script))
        return self.run(str(path), *arguments, **environment)

    def run(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start the interpreter."""
        return subprocess.Popen(
            [str(self.folder / "python"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env={**os.environ, MODULES: "", **environment},
            process_group=0,
        )

    def servers(self) -> list[int]:
        """Process ids of its fork servers, the first to start first; their forks look so too, but lead no session."""
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                words = (entry / "cmdline").read_text().split("\0")
                if len(words) > 2 and words[1].endswith("server.py") and words[2].startswith(str(self.folder)):
                    _, _, _, session, *rest = (entry / "stat").read_text().rpartition(")")[2].split()
                    if session == entry.name:
                        found[int(entry.name)] = int(rest[15])
        return sorted(found, key=lambda pid: found[pid])

    @contextmanager
    def held(self, **environment: str) -> Iterator[int]:
        """The parent of a process that runs meanwhile, and keeps its server."""
        with self.start("import os; print(os.getppid(), flush=True); input()", **environment) as process:
            assert process.stdout is not None
            yield int(process.stdout.readline())
            assert finish(process, "\n")[0] == ""  # it has gone on


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with forking(tmp_path, []):
        pass
    made = Node(tmp_path)
    yield made
    for pid in made.servers():  # a server without a child is there for some seconds
        os.kill(pid, signal.SIGKILL)


def finish(process: subprocess.Popen[str], text: str = "") -> tuple[str, str]:
    """What a process and its forks have printed and told, after all of them have ended."""
    out, errors = process.communicate(text, timeout=LIMIT)
    assert process.returncode == 0, errors
    return out, errors


def reports(process: subprocess.Popen[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    out, errors = finish(process, "words\n")
    found, own = ([line for line in text.splitlines() if line.startswith(name)] for text, name in
                  ((out, "found "), (errors, "own ")))  # fmt: skip
    return json.loads(found[0].removeprefix("found ")), json.loads(own[0].removeprefix("own "))


def test_a_fork_finds_what_a_start_finds(node: Node) -> None:
    loading = {MODULES: "numpy,torch"}
    with node.held(**loading) as server:
        first, second = (reports(node.start(REPORT, "--some", "x y", "", **loading)) for _ in range(2))
    started = reports(node.start(REPORT, "--some", "x y", "", name="other.py", **loading))
    assert first[1]["parent"] == second[1]["parent"] == server and started[1]["parent"] == os.getpid()
    as_default = json.loads(json.dumps(started[0]).replace("other.py", "default_worker.py"))
    assert first[0] == second[0] == as_default
    assert first[0]["leads_group"] and first[0]["input"] == "words\n" and first[0]["threads"] == 1
    for name in ("pid", "numpy", "random", "uuid", "ref"):
        assert len({own[name] for _, own in (first, second, started)}) == 3, name


def test_many_at_once_are_forks_of_one_server(node: Node) -> None:
    script = "import os, sys; print(os.getppid(), flush=True); print(sys.argv[1], sys.stdin.read())"
    processes = [node.start(script, str(number)) for number in range(12)]
    parents = {int(process.stdout.readline()) for process in processes if process.stdout is not None}
    assert node.servers() == list(parents) and len(parents) == 1
    printed = [finish(process, f"to {number}")[0].split() for number, process in enumerate(processes)]
    assert printed == [[str(number), "to", str(number)] for number in range(12)]


def test_another_environment_has_another_server(node: Node) -> None:
    script = "import os; print(os.getppid(), os.environ['COLOUR'])"
    with node.held(COLOUR="red") as red, node.held(COLOUR="blue") as blue:
        assert node.servers() == [red, blue]
        printed = [finish(node.start(script, COLOUR=colour))[0].split() for colour in ("red", "blue", "red")]
    assert printed == [[str(red), "red"], [str(blue), "blue"], [str(red), "red"]]


def test_workers_of_all_jobs_are_forks_of_one_server(node: Node) -> None:
    script = """
        import ctypes, os
        read = ctypes.CDLL(None).getenv
        read.restype = ctypes.c_char_p
        print(os.getppid(), os.environ.get("RAY_JOB_ID"), (read(b"RAY_JOB_ID") or b"None").decode())
    """
    with node.held(RAY_JOB_ID="01000000") as server:
        jobs: list[dict[str, str]] = [{"RAY_JOB_ID": "02000000"}, {}, {"RAY_JOB_ID": "01000000"}]
        printed = [finish(node.start(script, **job))[0].split() for job in jobs]
        assert node.servers() == [server]
    assert printed == [[str(server), *2 * [job]] for job in ("02000000", "None", "01000000")]


@pytest.mark.parametrize("kind", ["net", "mount"])
def test_another_container_that_shares_the_folder_has_another_server(node: Node, kind: str) -> None:
    inside = ["unshare", f"--{kind}"]
    if subprocess.run([*inside, "true"], capture_output=True).returncode:
        pytest.skip("not run: this user may not make namespaces")
    with node.held() as server:
        script = node.scripts / "default_worker.py"
        script.write_text("import os; print(os.getppid())")
        out = subprocess.run(
            [*inside, str(node.folder / "python"), str(script)],
            env={**os.environ, MODULES: ""}, cwd=node.folder, capture_output=True, text=True, timeout=LIMIT, check=True,
        )  # fmt: skip
        assert int(out.stdout) not in (server, os.getpid())
        assert {server, int(out.stdout)} == {*node.servers()}


def test_sockets_that_nobody_listens_at_are_removed_and_nothing_else(node: Node) -> None:
    gone = f"{os.stat('/proc/self/ns/pid').st_ino:x}-4194305"  # above any process id
    stay = ["f00d-1-0000beef", "bed-2-cafe.txt", "session_2026-11-23_20-26-10_069805_9172", "f00d-2-0000cafe"]
    (node.folder / stay[1]).touch()
    for name in stay[2:]:  # a cluster has its files here, too
        (node.folder / name).mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as live:
        live.bind(str(node.folder / stay[0]))
        live.listen()
        for name in ("f00d-1-0000dead", f"{gone}-0000dead", f"{gone}-0000beef.new"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
                dead.bind(str(node.folder / name))
        (node.folder / f"{gone}-0000cafe.failed").touch()
        with node.held() as server:
            own = next(path.name for path in node.folder.iterdir() if f"-{os.getpid()}-" in path.name)
            assert {path.name for path in node.folder.iterdir()} == {*stay, own, "python", "scripts"}
            assert node.servers() == [server]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["-c", "import os; print(os.getppid())"], ""),
        (["-"], "import os; print(os.getppid())"),
        (["-m", "timeit", "-n", "1", "-r", "1", "-s", "import os; print(os.getppid())"], ""),
    ],
)
def test_all_else_is_started(node: Node, arguments: Sequence[str], text: str) -> None:
    assert finish(node.run(*arguments), text)[0].split()[0] == str(os.getpid())
    assert not node.servers()


def test_a_status_of_an_interpreter_is_its_own(node: Node) -> None:
    process = node.run("-c", "raise SystemExit(7)")
    process.communicate(timeout=LIMIT)
    assert process.returncode == 7


@pytest.mark.parametrize(
    "module",
    [
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
        "raise ImportError('not here')",
    ],
)
def test_without_a_server_workers_are_started(node: Node, module: str) -> None:
    """A server refuses to fork a process with threads; the next worker does not try again."""
    (node.folder / "bad_module.py").write_text(f"print('loaded', flush=True)\n{module}\n")
    environment = {MODULES: "bad_module", "PYTHONPATH": str(node.folder)}
    script = "import os; print(os.getppid())"
    for times in (1, 0):
        out, errors = finish(node.start(script, **environment))
        assert out.split() == ["loaded"] * times + [str(os.getpid())]
        assert ("has started threads" in errors or "not here" in errors) == bool(times)


def test_an_opened_device_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("twinkle_ray.forkserver.server._DEVICES", (f"{tmp_path}/nvidia",))
    with open(tmp_path / "nvidia0", "w") as device, open(tmp_path / "other", "w"):
        assert _opened_devices() == [device.name]
    assert _opened_devices() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_after_a_killed_server_comes_another(node: Node, number: signal.Signals) -> None:
    with node.held() as first:
        os.kill(first, number)
        wait_until(lambda: first not in node.servers())
        with node.held() as second:
            assert node.servers() == [second] and second != first


def test_a_server_that_is_killed_before_it_answers_is_followed_by_another(node: Node) -> None:
    with node.held() as first:
        os.kill(first, signal.SIGSTOP)
        asking = node.start("import os; print(os.getppid())")
        wait_until(lambda: has_socket(asking.pid))
        time.sleep(0.2)  # the server has its request, or gets none
        os.kill(first, signal.SIGKILL)
        second = int(finish(asking)[0])
    assert second not in (first, os.getpid())


def has_socket(pid: int) -> bool:
    """Whether a process has opened a socket."""
    # A descriptor may be closed while the folder is read: what it leads to is its own path then.
    return any("socket:" in os.path.realpath(descriptor) for descriptor in Path(f"/proc/{pid}/fd").iterdir())


def test_who_goes_away_before_it_asks_does_not_end_the_server(node: Node) -> None:
    with node.held() as server:
        (path,) = (path for path in node.folder.iterdir() if path.is_socket())
        for sent in (b"", b"no request", b"/nowhere\x001\x00default_worker.py"):
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
                connection.connect(str(path))
                if sent:
                    connection.send(sent)
        assert finish(node.start("import os; print(os.getppid())"))[0].split() == [str(server)]


def test_a_process_in_a_folder_that_is_gone_is_started(node: Node) -> None:
    with node.held() as server:
        folder = node.folder / "gone"
        folder.mkdir()
        command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", str(node.folder / "python")]
        script = node.scripts / "default_worker.py"
        script.write_text("import os; print(os.getppid())")
        out = subprocess.run(
            [*command, str(script)], cwd=folder, capture_output=True, text=True, timeout=LIMIT, check=True
        )
        assert out.stdout.split() == [str(os.getpid())]
        assert node.servers() == [server]


def test_a_server_without_children_ends(node: Node) -> None:
    script = "import os, sys, time; print(os.getppid(), flush=True); time.sleep(float(sys.argv[1]))"
    soon = {IDLE_SECONDS: "1.5"}
    parents = {finish(node.start(script, pause, **soon))[0] for pause in ("2", "0")}
    assert len(parents) == 1  # the first child kept it for longer than it is idle
    wait_until(lambda: not node.servers(), 20)
    assert sorted(path.name for path in node.folder.iterdir()) == ["python", "scripts"]


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_how_long_a_server_is_idle_is_a_number_of_seconds(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IDLE_SECONDS, text)
    rule = f"^{IDLE_SECONDS}='{text}' must be a number of seconds from 0 to 1000000: use 60$"
    with pytest.raises(ValueError, match=rule):
        idle_seconds()


def test_a_server_ends_with_who_asked_for_it(node: Node) -> None:
    script = "import time; print('up', flush=True); time.sleep(3)"
    (node.scripts / "default_worker.py").write_text(script)
    asker = subprocess.Popen(
        [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:]); input()",
         str(node.folder / "python"), str(node.scripts / "default_worker.py")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0,
    )  # fmt: skip
    with asker:
        assert asker.stdout is not None and asker.stdout.readline() == b"up\n"
        assert len(node.servers()) == 1
        asker.kill()
        wait_until(lambda: not node.servers(), 10)
    assert [path.name for path in node.folder.iterdir() if path.is_socket()] == []


def test_the_folder_of_nodes_is_this_user_s_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = node_folder()
    assert folder == node_folder() and folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="remove it"):
        node_folder()
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="remove it"):
        node_folder()


def test_forks_are_the_default_of_cpus_alone() -> None:
    assert chosen_start_method(None, ["CPU", "CPU"]) == chosen_start_method("forkserver", ["GPU"]) == "forkserver"
    for types in (["GPU"], ["CPU", "GPU"], ["NPU"], ["ACCEL"]):
        assert chosen_start_method(None, types) == chosen_start_method("spawn", types) == "spawn"
    assert chosen_start_method("spawn", ["CPU"]) == "spawn"
    with pytest.raises(ValueError, match="start_method"):
        chosen_start_method("fork", ["CPU"])


def test_a_start_method_is_known_or_refused() -> None:
    assert check_start_method("forkserver") == "forkserver" and check_start_method("spawn") == "spawn"
    with pytest.raises(ValueError, match=r"^start_method='fork' must be 'forkserver' or 'spawn'$"):
        check_start_method("fork")


def wait_until(holds: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen in its time"
        time.sleep(0.05)


def test_a_launcher_whose_asker_has_gone_starts_no_server(node: Node) -> None:
    script = node.scripts / "default_worker.py"
    script.write_text("import os; print(os.getppid())")
    told = node.folder / "told"
    # The shell ends at once; what it leaves behind waits for that.
    orphan = f'(while [ -d /proc/$$ ]; do sleep 0.01; done; exec "{node.folder}/python" "{script}" > "{told}" 2>&1) &'
    subprocess.run(
        ["sh", "-c", orphan], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT, check=True
    )
    until = time.monotonic() + LIMIT
    while not (told.exists() and told.read_text()) and time.monotonic() < until:
        time.sleep(0.01)
    parent = told.read_text().strip()
    if parent != "1":
        pytest.skip(f"process {parent} takes in orphans here, and looks like an asker")
    assert node.servers() == []
