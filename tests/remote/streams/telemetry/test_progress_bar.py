"""The progress of a stream on the standard error."""

from __future__ import annotations

import builtins
import io
import re
import sys
from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import get, on, remote_class, remote_function, session, stream

LINE = r"stream: 24 rows, [\d.,]+ rows/s, lag 0\.0 \(worst 0\), busy: Worker\.work \d+%, loop \d+%"


@remote_class()
class Worker:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def work(self, rows: list[int]) -> list[int]:
        return rows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(ahead: int, epochs: int = 1, **options: Any) -> None:
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        worker = on("two", DeviceMesh.from_sizes(dp_size=2)).create(Worker)
        with stream([[1] * 4] * 6, worker.work, rows=4, ahead=ahead, **options) as batches:
            for _ in range(epochs):
                for batch in batches:
                    get(batch)


@pytest.mark.parametrize("ahead", [0, 8])
def test_without_a_terminal_there_are_lines(ahead: int, capfd: pytest.CaptureFixture[str]) -> None:
    run(ahead, progress=True)
    told = capfd.readouterr().err
    assert re.fullmatch(LINE + "\n", told), told
    run(ahead, epochs=2, progress=True)
    told = capfd.readouterr().err
    assert len(told.splitlines()) == 2
    assert "\r" not in told
    run(ahead)
    assert not capfd.readouterr().err


def test_on_a_terminal_there_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    run(8, progress=True)
    last = terminal.getvalue().split("\r")[-1]
    assert re.search(
        r"stream: 24\.0 rows \[.* rows/s, lag 0\.0 \(worst 0\), busy: Worker\.work \d+%, loop \d+%\]", last
    )


def test_one_process_of_a_launcher_shows_it(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RANK", "1")
    run(0, progress=True)
    assert not capfd.readouterr().err


def test_without_tqdm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install tqdm"):
        run(8, progress=True)
