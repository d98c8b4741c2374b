"""What is safe by default: where a server listens, and that each point of the page has its attack."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
import urllib.request
from pathlib import Path

import pytest
from tests.conformance.subjects.components import Counter

from twinkle_remote import serve
from twinkle_remote.errors import BackendError

TESTS = Path(__file__).parents[1]
PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")


def test_beyond_loopback_it_wants_tls_or_insecure(threads: None) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "models.example.com"):
        with pytest.raises(BackendError, match=r"in plain text: give tls=.* or insecure=True"):
            serve([Counter], host=host, port=0)
    with serve([Counter], port=0, token="a token for tests") as server:
        port = int(server.address.rpartition(":")[2])
        for family, _, _, _, place in socket.getaddrinfo(socket.gethostname(), port, type=socket.SOCK_STREAM):
            with socket.socket(family) as one:
                one.settimeout(10.0)
                assert str(place[0]).startswith("127.") or one.connect_ex(place) != 0, "only this machine reaches it"


def test_tokens_come_from_a_file_or_from_the_environment(
    threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("a token-of-a-file\n")
    for mode, said in ((0o644, "others can read it"), (0o600, "")):
        file.chmod(mode)
        if said:
            with pytest.raises(ValueError, match=said):
                serve([Counter], port=0, token=file)
    with serve([Counter], port=0, token=file) as server:
        assert server.token == "token-of-a-file"
    monkeypatch.setenv("TWINKLE_TOKEN", "a token of the environment")
    with serve([Counter], port=0) as server:
        assert server.token == "a token of the environment"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the fork of this test runs no thread's code
def test_a_fork_ends_by_sigterm_and_leaves_the_server_to_its_parent(threads: None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    with serve([Counter], port=0, token="a token for tests") as server:
        ready, begun = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(begun, b"x")
                time.sleep(20.0)
            finally:  # in place of the end of pytest
                os._exit(3)
        assert os.read(ready, 1) == b"x"
        os.kill(pid, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
        with urllib.request.urlopen(f"{server.address}/health", timeout=20.0) as answer:
            assert answer.status == 204
    assert signal.getsignal(signal.SIGTERM) == before


def test_each_point_of_the_page_has_its_attack() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (`test_[^|]+) \|$", PAGE, re.MULTILINE)
    written = {
        name
        for folder in ("http", "twinkle")
        for path in (TESTS / folder).rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert len(rows) >= 15
    for point, names in rows:
        missing = set(re.findall("`(test_[^`]+)`", names)) - written
        assert not missing, (point, missing)
