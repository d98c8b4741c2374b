"""`twinkle serve` in a process of its own: what it prints, whom it refuses, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = """
import os
import time
from pathlib import Path

from twinkle import remote_class, remote_function


class Plain:
    pass


@remote_class()
class Actor:
    @remote_function(dispatch="all", collect="first")
    def double(self, number: int) -> int:
        return 2 * number

    @remote_function(dispatch="all", collect="first")
    def wait_for(self, begun: str, ended: str) -> str:
        Path(begun).touch()
        until = time.monotonic() + 60.0
        while not Path(ended).exists() and time.monotonic() < until:
            time.sleep(0.01)
        return "done"

    @remote_function(dispatch="all", collect="first")
    def environment(self) -> list[str]:
        return list(os.environ.values())
"""
TOKEN = "a token for this test"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "broken.py").write_text("import nowhere_to_be_found\n")
    (tmp_path / "raises.py").write_text("raise KeyError('so')\n")
    token = tmp_path / "token"
    token.write_text("# for tests\nsecret-of-a-file\n")
    token.chmod(0o600)
    return tmp_path


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "twinkle", "serve", *arguments]


def environment(token: str = TOKEN) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "TWINKLE_TOKEN"}
    return {**kept, "TWINKLE_TOKEN": token} if token else kept


@contextlib.contextmanager
def served(folder: Path, *arguments: str, token: str = TOKEN, **options: Any) -> Iterator[tuple[Any, str]]:
    """A server, and its host and port."""
    given = ["models:Actor", "--mode", "threads", "--group", "actor=2xCPU", "--port", "0", *arguments]
    process = subprocess.Popen(
        command(*given),
        cwd=folder,
        env=environment(token),
        stdout=subprocess.PIPE,
        text=True,
        **{"stderr": subprocess.PIPE, **options},
    )
    limit = threading.Timer(60.0, process.kill)
    with process:
        limit.start()
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            limit.cancel()
            yield process, urlsplit(address).netloc
        finally:
            limit.cancel()
            process.kill()


def post(place: str, path: str, token: str, **keywords: Any) -> tuple[int, Any]:
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60.0)) as connection:
        connection.request("POST", path, json.dumps(keywords), {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def health(place: str) -> int:
    with contextlib.closing(http.client.HTTPConnection(place, timeout=60.0)) as connection:
        connection.request("GET", "/health")
        return connection.getresponse().status


def end(process: Any) -> tuple[int, str]:
    """Exit code and standard error after SIGTERM."""
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors or ""


def test_a_class_is_served_and_sigterm_drains(folder: Path) -> None:
    begun, ended = folder / "begun", folder / "ended"
    answers: list[Any] = []
    with served(folder) as (process, place):
        status, built = post(place, "/v1/Actor", TOKEN)
        assert status == 201, built
        path = f"/v1/Actor/{built['id']}"
        assert post(place, f"{path}/double", TOKEN, number=4) == (200, {"result": 8})
        assert not any(TOKEN in value for value in post(place, f"{path}/environment", TOKEN)[1]["result"])

        def call() -> None:
            answers.append(post(place, f"{path}/wait_for", TOKEN, begun=str(begun), ended=str(ended)))

        caller = threading.Thread(target=call)
        caller.start()
        wait_until(begun.exists)
        process.send_signal(signal.SIGTERM)
        # A call before that would wait for the one at work.
        wait_until(lambda: health(place) == 503)
        assert post(place, f"{path}/double", TOKEN, number=4)[0] == 503
        process.send_signal(signal.SIGTERM)  # a second one changes nothing
        assert process.poll() is None
        ended.touch()
        caller.join(60.0)
        assert answers == [(200, {"result": "done"})]
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert TOKEN not in errors


def wait_until(holds: Any) -> None:
    until = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_a_token_is_in_no_list_of_processes(folder: Path) -> None:
    with served(folder, "--token-file", "token", token="") as (process, place):
        assert post(place, "/v1/Actor", "secret-of-a-file")[0] == 201
        assert post(place, "/v1/Actor", TOKEN)[0] == 401
        listed = subprocess.run(["ps", "axeww"], capture_output=True, text=True, timeout=60, check=True).stdout
        assert "models:Actor" in listed and "secret-of-a-file" not in listed
        code, errors = end(process)
        assert code == 0 and "secret-of-a-file" not in errors


def test_a_token_that_is_made_is_shown_once_on_the_terminal(folder: Path) -> None:
    outer, inner = pty.openpty()
    with served(folder, token="", stderr=inner) as (process, place):
        os.close(inner)
        shown = os.read(outer, 4096).decode()
        token = shown.rpartition("token: ")[2].strip()
        assert len(token) >= 40 and shown.count(token) == 1
        assert post(place, "/v1/Actor", token)[0] == 201
        cmdline = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert token.encode() not in cmdline
        assert end(process)[0] == 0
        with contextlib.suppress(OSError):  # the other end of a terminal is closed
            assert token not in os.read(outer, 65536).decode()
    os.close(outer)


def test_tenants_have_a_line_each(folder: Path) -> None:
    (folder / "token").write_text("ann secret-of-ann\nbob secret-of-bob\n")
    with served(folder, "--token-file", "token") as (process, place):
        for token, status in (("secret-of-ann", 201), ("secret-of-bob", 201), (TOKEN, 401)):
            assert post(place, "/v1/Actor", token)[0] == status
        assert end(process)[0] == 0


def test_ctrl_c_ends_it(folder: Path) -> None:
    with served(folder) as (process, _):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["models"], "it is MODULE:CLASS"),
        (["nowhere:Actor"], "there is no module 'nowhere'"),
        (["broken:Actor"], "needs the module 'nowhere_to_be_found'"),
        (["raises:Actor"], "does not load: KeyError: 'so'"),
        (["models:Nothing"], "has no class 'Nothing'"),
        (["models:Plain"], "serve takes remote classes"),
        (["models:Actor", "--group", "actor"], "it is NAME=COUNTxTYPE"),
        (["models:Actor", "--group", "actor=0xCPU"], "must be at least 1"),
        (["models:Actor", "--group", "actor=2xCPU@3"], "nodes=3 does not divide the 2 workers of the group"),
        (["models:Actor", "--cluster", "auto"], "--cluster goes with --mode ray"),
        (["models:Actor", "--host", "0.0.0.0"], "insecure=True"),
        (["models:Actor", "--tls", "nothing", "nothing"], "cannot be used"),
        (["models:Actor", "--token-file", "nothing"], "cannot be read"),
        (["models:Actor", "--token-file", "."], "cannot be read"),
        (["models:Actor", "--token-file", "open"], "chmod 600"),
        (["models:Actor", "--token-file", "empty"], "holds one token"),
        (["models:Actor", "--token-file", "twice"], "holds one token"),
        (["models:Actor", "--port", "taken"], "cannot listen"),
        (["models:Actor", "--token", "an argument"], "unrecognized arguments"),
    ],
)
def test_what_is_wrong_is_said(
    folder: Path,
    arguments: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from twinkle.cli import main

    for name, text, mode in (("open", "a-token-in-a-file", 0o640), ("empty", "", 0o600), ("twice", "a b\na c", 0o600)):
        (folder / name).write_text(text)
        (folder / name).chmod(mode)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv("TWINKLE_TOKEN", TOKEN)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            given = [str(taken.getsockname()[1]) if one == "taken" else one for one in arguments]
            code = main(["serve", *given])
    except SystemExit as ended:
        code = int(str(ended.code))
    finally:
        signal.signal(signal.SIGTERM, before)
        sys.modules.pop("models", None)
    told = capsys.readouterr()
    assert code in (1, 2) and said in told.err and not told.out, told
    assert "Traceback" not in told.err and TOKEN not in told.err
