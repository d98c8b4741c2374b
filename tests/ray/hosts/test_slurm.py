"""The job scripts of examples/slurm, on two hosts: a run, one that is asked to stop and goes on, one that fails."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hosts import Hosts
from slurm import Job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.ray, pytest.mark.jobs]

ROOT = Path(__file__).parents[3]
SFT = str(ROOT / "examples" / "sft.py")
SECONDS = 300.0  # for a job; a quiet machine needs one minute


@pytest.fixture(scope="module")
def hosts(hosts_here: None) -> Iterator[Hosts]:
    with Hosts() as made:
        yield made


@pytest.fixture
def submit(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Start a script of examples/slurm on two hosts."""
    jobs: list[Job] = []

    def start(script: str, *arguments: str, **environment: str) -> Job:
        number = 7_000_000 + time.monotonic_ns() % 1_000_000
        folder = tmp_path / str(number)
        folder.mkdir()
        own = {"RAY_TMPDIR": str(hosts.folder), "SLURM_CPUS_PER_TASK": "1", **environment}
        path = ROOT / "examples" / "slurm" / script
        jobs.append(Job(hosts, ["one", "two"], path, arguments, folder, own, number))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def losses(job: Job) -> dict[int, float]:
    """The loss of each step that a job printed."""
    return {int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss ([0-9.]+)", job.log)}


def finished(job: Job) -> dict[int, float]:
    """The loss of each step of a job that ends well."""
    assert job.wait(SECONDS) == 0, job.log
    return losses(job)


def until(job: Job, found: Callable[[], bool]) -> None:
    """Wait for what a job does."""
    end = time.monotonic() + SECONDS
    while not found():
        assert job.runs and time.monotonic() < end, job.log
        time.sleep(0.1)


def alone(steps: int) -> list[float]:
    """The losses of the first steps in one process."""
    command = [sys.executable, SFT, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    return [float(loss) for loss in re.findall(r"loss ([0-9.]+)", done.stdout)]


def test_a_run_that_is_notified_of_its_end_saves_and_goes_on(
    submit: Callable[..., Job], hosts: Hosts, tmp_path: Path
) -> None:
    run = ["python", SFT, "--mode", "ray", "--workers", "2", "--checkpoints", str(tmp_path / "run")]
    first = submit("ray.sh", *run, "--steps", "100000", "--every", "100000")
    until(first, lambda: 2 in losses(first))
    first.notice()
    before = finished(first)
    assert first.requeued == [first.number]
    for name in ("one", "two"):
        assert "raylet" not in hosts.run(name, "ps", "-e", "-o", "args=")
    last = max(before)
    second = submit("ray.sh", *run, "--steps", str(last + 2))
    after = finished(second)
    assert sorted(after) == [last + 1, last + 2] and second.requeued == []
    assert list({**before, **after}.values()) == pytest.approx(alone(last + 2), abs=1e-3)


def test_a_program_that_fails_fails_the_job_and_leaves_logs_of_each_host(submit: Callable[..., Job]) -> None:
    job = submit("ray.sh", "python", "-c", "raise SystemExit(5)")
    assert job.wait(SECONDS) == 5, job.log
    assert job.requeued == []
    logs = job.folder / f"ray-logs-{job.number}"
    assert sorted(path.name for path in logs.iterdir()) == ["one", "two"]
    assert all((host / "raylet.out").stat().st_size for host in logs.iterdir())


def test_processes_of_a_launcher_that_lose_one_start_again_from_the_checkpoint(
    submit: Callable[..., Job], hosts: Hosts, tmp_path: Path
) -> None:
    run = [SFT, "--workers", "2", "--checkpoints", str(tmp_path / "run"), "--steps", "6", "--every", "1"]
    job = submit("torchrun.sh", *run)
    until(job, lambda: 3 in losses(job))
    hosts.run("two", "pkill", "-KILL", "-f", "--", f"-u {SFT}")
    assert list(finished(job).values()) == pytest.approx(alone(6), abs=1e-3)
    assert job.log.count("step    1 ") == 1  # and not from the start
