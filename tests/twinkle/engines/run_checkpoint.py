"""Goes on from the newest checkpoint for two steps in each layout (dp x fsdp x tp), and saves: `folder 2x2x1 1x2x2`."""

import sys
from pathlib import Path

from run_training import run_layouts
from test_checkpoint import new_loader, new_model, train

import twinkle
from twinkle import DeviceGroup, DeviceMesh
from twinkle.engines import load, save


def go_on(folder: Path, mesh: DeviceMesh) -> None:
    with twinkle.session("local", groups=[DeviceGroup("trainer", mesh.world_size, "CPU")]):
        model, loader = new_model(device_mesh=mesh, remote_group="trainer"), new_loader()
        load(folder, model=model, loader=loader)
        train(model, loader, 2)
        save(folder, model=model, loader=loader)


if __name__ == "__main__":
    run_layouts(Path(sys.argv[1]), sys.argv[2:], go_on)
