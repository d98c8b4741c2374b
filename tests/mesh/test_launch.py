"""The place of a process, by the variables of each launcher."""

from __future__ import annotations

import pytest

from twinkle_mesh import DeviceMesh, launched

LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE"),
    "Open MPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    "MVAPICH": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in LAUNCHERS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_each_launcher_divides_rows(launcher: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rank, size = LAUNCHERS[launcher]
    monkeypatch.setenv(rank, "2")
    monkeypatch.setenv(size, "4")
    place = launched()
    assert place is not None and (place.rank, place.world_size) == (2, 4) and size in place.by
    assert DeviceMesh.from_sizes(dp_size=4).get_slice(8) == slice(4, 6)


def test_one_process_of_a_launcher_and_a_batch_script_are_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setenv("SLURM_PROCID", "0")  # sbatch sets it, and no step
    monkeypatch.setenv("SLURM_NTASKS", "8")
    assert launched() is None


def test_torchrun_inside_of_srun_is_torchruns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "RANK": "5", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    place = launched()
    assert place is not None and (place.rank, place.world_size) == (5, 8)
