import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from draw_schedules import read_schedule
from streamed import main, prompts_of

ARGUMENTS = ("--samplers", "16", "--rows", "8", "--batches", "20", "--median", "0.03")


def test_the_streamed_loop_is_faster_and_both_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["streamed.py", *ARGUMENTS, "--out", str(tmp_path)])
    main()
    told = capsys.readouterr().out
    assert len(re.findall(r"^\w+: 160 rows in .* 20 batches, 20 versions$", told, re.MULTILINE)) == 2
    ratio = re.search(r"streamed against synchronous: ([\d.]+) times", told)
    assert ratio is not None
    assert float(ratio[1]) > 2  # 6 by the durations alone
    assert (tmp_path / "schedules.png").read_bytes().startswith(b"\x89PNG")
    synchronous, streamed = (read_schedule(tmp_path / f"{name}.json") for name in ("synchronous", "streamed"))
    assert synchronous.end > 2 * streamed.end
    assert synchronous.busy < streamed.busy
    for schedule in (synchronous, streamed):
        assert [version for _, _, version in schedule.steps] == list(range(20))
        assert sum(map(len, schedule.lanes)) == 160
    for begin, seconds, version in (chunk for lane in synchronous.lanes for chunk in lane):
        trained = synchronous.steps[version]
        assert begin + seconds <= trained[0] + 0.001


@pytest.mark.ray
def test_the_same_program_runs_on_ray(joining: dict[str, str], tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "examples" / "streamed.py"
    small = ("--samplers", "2", "--rows", "2", "--batches", "4", "--median", "0.05")
    command = [sys.executable, str(program), "--mode", "ray", *small, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=joining)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": 8 rows in") == 2
    assert sum(map(len, read_schedule(tmp_path / "streamed.json").lanes)) == 8


def test_prompts_are_the_same_each_time() -> None:
    prompts = prompts_of(3, 4, 0.5)
    assert prompts == prompts_of(3, 4, 0.5)
    assert [len(batch) for batch in prompts] == [4, 4, 4]
    assert all(0.0 < seconds <= 10.0 for batch in prompts for seconds in batch)
    json.dumps(prompts)
