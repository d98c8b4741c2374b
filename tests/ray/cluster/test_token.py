"""The token file is its owner's alone, whoever made it."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

from twinkle_ray.cluster.cluster import make_token

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".ray" / "auth_token"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_is_made_once(token: Path) -> None:
    make_token()
    made = token.read_text()
    assert len(made) == 64 and mode(token) == 0o600 and mode(token.parent) == 0o700
    make_token()
    assert token.read_text() == made


def test_one_that_others_can_read_is_taken_from_them(token: Path) -> None:
    token.parent.mkdir()
    token.write_text("mine")
    token.chmod(0o644)
    make_token()
    assert (token.read_text(), mode(token)) == ("mine", 0o600)


def test_one_at_another_place_or_in_a_variable_is_the_users(
    token: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "elsewhere"))
    make_token()
    assert mode(tmp_path / "elsewhere") == 0o600 and not token.exists()
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "mine")
    make_token()
    assert not token.exists()
