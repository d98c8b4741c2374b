"""The bar: in samples, beginning where a resume begins, on one rank."""

import builtins
import io
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from twinkle_data import Batch, DataLoader
from twinkle_data.cursor import Cursor
from twinkle_data.loading.bar import Bar, shows_here
from twinkle_mesh import DeviceMesh, use_rank


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    shown = Terminal()
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def loader(**options: Any) -> DataLoader[Batch[int]]:
    return DataLoader(list(range(40)), **({"batch_size": 8, "progress": True} | options))


def test_a_bar_counts_samples_and_names_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    own = loader()
    list(own)
    list(own)
    shown = terminal.getvalue()
    assert "epoch 0: 100%" in shown
    assert "epoch 1: 100%" in shown
    assert "40.0/40.0" in shown


def test_a_resumed_bar_begins_at_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    own = loader()
    own.load_state_dict({**own.state_dict(), "position": 24})
    list(own)
    shown = terminal.getvalue()
    assert shown.lstrip("\r").startswith("epoch 0:  60%")
    assert "24.0/40.0 [00:00<?" in shown, "what was delivered before is not in the rate"


def test_what_is_dropped_is_not_in_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    list(loader(batch_size=12))
    assert "36.0/36.0" in terminal.getvalue()


def test_a_stream_has_a_bar_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)

    def numbers() -> Iterator[int]:
        yield from range(16)

    list(DataLoader(numbers, batch_size=8, progress=True))
    shown = terminal.getvalue()
    assert "16.0 samples" in shown
    assert "%" not in shown


def test_one_rank_shows_it() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    shown = []
    for rank in range(4):
        with use_rank(rank):
            shown.append(shows_here(mesh))
    assert shown == [True, False, False, False]
    assert shows_here(mesh)


def test_without_a_terminal_there_are_lines_and_no_carriage_return(capsys: pytest.CaptureFixture[str]) -> None:
    own = loader()
    own.load_state_dict({**own.state_dict(), "position": 24})
    list(own)
    list(own)
    shown = capsys.readouterr().err
    assert re.fullmatch(
        r"epoch 0: 40 of 40 samples, [\d.,]+ samples/s\nepoch 1: 40 of 40 samples, [\d.,]+ samples/s\n", shown
    )


def test_without_tqdm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    on_terminal(monkeypatch)
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"pip install tqdm"):
        Bar(Cursor(), 10)
