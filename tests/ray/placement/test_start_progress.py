"""What a start that takes long shows: a bar on a terminal, lines elsewhere, and nothing where it is switched off."""

from __future__ import annotations

import os
import sys
import termios
from typing import TYPE_CHECKING

import pytest

import twinkle_remote
from twinkle_mesh import DeviceGroup
from twinkle_ray.placement import first_replies, start_progress
from twinkle_ray.placement.start_progress import StartProgress

if TYPE_CHECKING:
    from collections.abc import Mapping

MISSING: Mapping[str, tuple[int, int]] = {"sampler": (20, 32)}


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_progress, "QUIET_SECONDS", 0.0)
    monkeypatch.setattr(start_progress, "LINE_SECONDS", 1e-9)


def test_a_short_start_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = StartProgress(64)
    progress.waiting("waiting for resources: busy")
    progress.ready(MISSING)
    progress.close()
    assert not progress.due and capsys.readouterr().err == ""


@pytest.mark.usefixtures("at_once")
def test_where_nobody_sees_a_bar_a_line_comes_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    progress = StartProgress(64)
    monkeypatch.setattr(start_progress, "LINE_SECONDS", 60.0)
    progress.ready(MISSING)
    progress.ready(MISSING)
    progress.close()
    progress.ready(MISSING)
    assert capsys.readouterr().err == "twinkle: workers ready: 44 of 64; missing: sampler 20 of 32\n"


@pytest.mark.usefixtures("at_once")
def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.openpty()
    termios.tcsetwinsize(writer, (24, 120))
    shown = ""
    with os.fdopen(writer, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        progress = StartProgress(64)
        progress.waiting("waiting for resources: busy")
        progress.ready(MISSING)
        progress.close()
        monkeypatch.undo()
        print("the end", file=terminal, flush=True)
        while "the end" not in shown:  # a read may return a part
            shown += os.read(reader, 1 << 16).decode()
    os.close(reader)
    assert "\rworkers ready:  69%" in shown and "44/64" in shown and "missing: sampler 20 of 32" in shown


@pytest.mark.usefixtures("at_once", "ray_cluster")
def test_a_session_shows_its_start_unless_it_is_switched_off(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_replies, "_LOOK_SECONDS", 0.001)  # two workers may be ready within one look
    groups = [DeviceGroup("late", 2, "CPU")]
    with twinkle_remote.session("ray", groups=groups):
        pass
    shown = [line for line in capsys.readouterr().err.splitlines() if "workers ready" in line]
    assert shown[0].startswith("twinkle: workers ready: ") and "of 2; missing: late " in shown[0]
    with twinkle_remote.session("ray", groups=groups, progress=False):
        pass
    assert "workers ready" not in capsys.readouterr().err
