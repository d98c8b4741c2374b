"""Trainings with checkpoints in real processes, in one program: `run_checkpoint.py folder`.

A training over two ranks that draw random numbers runs undisturbed, and again until it is killed, and goes on. Another
one is written by one mesh (dp x fsdp x tp), and goes on in another.
"""

import json
import shutil
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from checkpoints.test_checkpoint import KILLED_AFTER, STEPS, new_loader, new_model, train
from run_training import run_layouts, start_ranks

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import load, save

remove = shutil.rmtree


def cleared(path: Path, **options: Any) -> None:
    """Clear the place of a checkpoint, and see that no other rank writes there yet."""
    remove(path, **options)
    time.sleep(0.3)
    assert not path.exists()


def go_on(folder: Path, mesh: DeviceMesh) -> None:
    with (
        patch("shutil.rmtree", cleared),
        twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]),
    ):
        model, loader = new_model(device_mesh=mesh, remote_group="trainer"), new_loader()
        load(folder, model=model, loader=loader)
        train(model, loader, 2)
        save(folder, model=model, loader=loader)


def save_each_step(folder: Path, mesh: DeviceMesh, endless: bool = False) -> None:
    """Train on, up to STEPS steps in all; after each, save, then note the loss of the step."""
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        model, loader = new_model(dropout=0.2, device_mesh=mesh, remote_group="trainer"), new_loader()
        found = load(folder, model=model, loader=loader)
        done = 0 if found is None else int(found.name.removeprefix("checkpoint-"))
        while endless or done < STEPS:
            (loss,) = train(model, loader, 1)
            save(folder, model=model, loader=loader)
            done += 1
            if dist.get_rank() == 0:
                with (folder / "losses.jsonl").open("a") as file:
                    file.write(json.dumps([done, loss]) + "\n")


def kill_after(folder: Path, steps: int) -> None:
    """Kill all ranks of an endless training at some moment after so many steps."""
    ranks = start_ranks(folder, "2x1x1", partial(save_each_step, endless=True))
    told, limit = folder / "losses.jsonl", time.monotonic() + 300
    while not told.exists() or len(told.read_text().splitlines()) < steps:
        if time.monotonic() > limit or not all(rank.is_alive() for rank in ranks):
            sys.exit(f"the training took no {steps} steps")
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for name in ("undisturbed", "killed", "meshes"):
        (root / name).mkdir()
    run_layouts(root / "undisturbed", ["2x1x1"], save_each_step)
    kill_after(root / "killed", KILLED_AFTER)
    run_layouts(root / "killed", ["2x1x1"], save_each_step)
    run_layouts(root / "meshes", ["2x2x1", "1x2x2"], go_on)
