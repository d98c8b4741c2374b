"""The bar: in samples, beginning where a resume begins, on one rank."""

import builtins
from collections.abc import Iterator
from typing import Any

import pytest

from twinkle_data import Batch, DataLoader
from twinkle_data.cursor import Cursor
from twinkle_data.loading.bar import Bar, shows_here
from twinkle_mesh import DeviceMesh, use_rank


def loader(**options: Any) -> DataLoader[Batch[int]]:
    return DataLoader(list(range(40)), **({"batch_size": 8, "progress": True} | options))


def test_a_bar_counts_samples_and_names_the_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    own = loader()
    list(own)
    list(own)
    shown = capsys.readouterr().err
    assert "epoch 0: 100%" in shown
    assert "epoch 1: 100%" in shown
    assert "40.0/40.0" in shown


def test_a_resumed_bar_begins_at_its_position(capsys: pytest.CaptureFixture[str]) -> None:
    own = loader()
    own.load_state_dict({**own.state_dict(), "position": 24})
    list(own)
    shown = capsys.readouterr().err
    assert shown.lstrip("\r").startswith("epoch 0:  60%")
    assert "24.0/40.0 [00:00<?" in shown, "what was delivered before is not in the rate"


def test_what_is_dropped_is_not_in_the_total(capsys: pytest.CaptureFixture[str]) -> None:
    list(loader(batch_size=12))
    assert "36.0/36.0" in capsys.readouterr().err


def test_a_stream_has_a_bar_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    def numbers() -> Iterator[int]:
        yield from range(16)

    list(DataLoader(numbers, batch_size=8, progress=True))
    shown = capsys.readouterr().err
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


def test_without_tqdm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(ImportError, match=r"pip install 'twinkle-data\[progress\]'"):
        Bar(Cursor(), 10)
