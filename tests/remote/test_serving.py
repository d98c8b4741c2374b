"""What `serve` says where twinkle-http is not installed."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

from twinkle_remote import initialize, serve
from twinkle_remote.errors import BackendError


def test_without_the_package_they_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "twinkle_http", None)
    with pytest.raises(BackendError, match="install twinkle-http"):
        serve([])


def test_without_the_entry_point_the_mode_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: ())
    with pytest.raises(BackendError, match="install twinkle-http"):
        initialize("http", address="http://127.0.0.1:1")
