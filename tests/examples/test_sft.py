from pathlib import Path

import pytest
from sft import main


def test_loss_falls() -> None:
    losses = main(["--steps", "40"])
    assert sum(losses[-3:]) / 3 < losses[0] - 1.0


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = main(["--steps", "8"])
    stop, checkpoints = tmp_path / "stop", ["--checkpoints", str(tmp_path / "run"), "--every", "3"]
    monkeypatch.setenv("STOP_FILE", str(stop))
    assert main(["--steps", "5", *checkpoints]) == pytest.approx(whole[:5])
    assert main(["--steps", "8", *checkpoints]) == pytest.approx(whole[5:])
    assert main(["--steps", "8", *checkpoints]) == []
    stop.touch()
    assert main(["--steps", "9", *checkpoints]) == []
