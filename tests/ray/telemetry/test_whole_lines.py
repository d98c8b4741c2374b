"""Lines are passed on whole."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from twinkle_ray.telemetry.whole_lines import WholeLines


class Pieces(io.StringIO):
    """Remembers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)


@given(st.lists(st.text(alphabet="a\n\r", max_size=5)))
def test_nothing_is_lost_and_no_line_is_parted(written: list[str]) -> None:
    under = Pieces()
    stream = WholeLines(under)
    for text in written:
        assert stream.write(text) == len(text)
        assert all(piece.endswith("\n") for piece in under.pieces)
    stream.flush()
    assert under.getvalue() == "".join(written)


def test_a_long_line_and_a_flushed_one_do_not_wait() -> None:
    under = Pieces()
    stream = WholeLines(under)
    print("step 1", end="\r", flush=True, file=stream)
    assert under.pieces == ["step 1\r"]
    stream.write("x" * 10_000)
    assert len(under.getvalue()) == 10_007


def test_a_line_is_one_write() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # it parts what is written apart
    ours.settimeout(10)
    with ours, theirs:
        raw: Any = io.FileIO(theirs.fileno(), "w", closefd=False)
        stream = io.TextIOWrapper(raw, write_through=True)  # it holds nothing back, like the streams of Ray's workers
        print("before", file=stream)
        assert [ours.recv(100), ours.recv(100)] == [b"before", b"\n"]
        print("two\nlines", file=WholeLines(stream))
        assert [ours.recv(100), ours.recv(100)] == [b"two\n", b"lines\n"]


def test_the_last_words_of_a_process_arrive() -> None:
    program = (
        "import sys\nfrom twinkle_ray.telemetry.whole_lines import print_by_line\n"
        "print_by_line()\nprint('no end', end='')\nsys.stderr.write('none here')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout, done.stderr) == ("no end", "none here")
