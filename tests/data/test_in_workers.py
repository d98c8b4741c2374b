"""Loaders that a component makes on its workers give, all ranks together, what the same loader gives in the driver."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.data.test_next_passes import Counting

from twinkle_data import DataLoader, Mixture
from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable

GROUPS = [DeviceGroup("data", 4, "CPU")]
ROWS = 23
MESHES = [
    DeviceMesh.from_sizes(dp_size=4),
    DeviceMesh.from_sizes(dp_size=2, tp_size=2),
    DeviceMesh.from_sizes(fsdp_size=2, dp_size=2),
    DeviceMesh.from_sizes(tp_size=4),
]


class Drawing:
    """Rows that draw."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[int, float, float]:
        return index, random.random(), float(np.random.rand())


DATASETS: dict[str, Callable[[], Any]] = {
    "list": lambda: list(range(ROWS)),
    "columns": lambda: {"a": list(range(ROWS)), "b": [str(row) for row in range(ROWS)]},
    "drawing": Drawing,
    "mixture": lambda: Mixture({"list": list(range(10)), "drawing": Drawing()}, {"list": 1, "drawing": 2}),
    "stream": lambda: Counting(ROWS),
}


def epochs_of(loader: DataLoader[Any], count: int) -> list[list[list[Any]]]:
    """The rows of each step, without padding."""
    epochs = [[(list(batch), batch.valid) for batch in loader] for _ in range(count)]
    return [[[row for row, valid in zip(*step, strict=True) if valid] for step in epoch] for epoch in epochs]


def steps_of(loader: DataLoader[Any], count: int) -> None:
    for _ in range(count):
        if next(iter(loader), None) is None:  # the end of a stream was reached
            next(iter(loader))


@remote_class()
class Trainer:
    def __init__(self, kind: str, options: dict[str, Any], state: dict[str, Any] | None) -> None:
        self.loader: DataLoader[Any] = DataLoader(DATASETS[kind](), **options)
        if state is not None:
            self.loader.load_state_dict(state)

    @remote_function(dispatch="all", collect="none")
    def save(self, steps: int) -> Any:
        steps_of(self.loader, steps)
        return json.loads(json.dumps(self.loader.state_dict()))

    @remote_function(dispatch="all", collect="none")
    def epochs(self, count: int) -> Any:
        return epochs_of(self.loader, count)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("mode", ["threads", "local"])
def test_workers_have_what_the_driver_has(mode: str, seed: int) -> None:
    draw = random.Random(seed)
    kind = sorted(DATASETS)[seed % len(DATASETS)]
    options: dict[str, Any] = {"shuffle": kind != "stream" and draw.random() < 0.6, "seed": draw.randrange(9)}
    workers = {"num_workers": int(draw.random() < 0.15)}
    state: dict[str, Any] | None = None
    with session(mode, groups=GROUPS):
        for life in range(2):
            mesh = draw.choice(MESHES)
            options |= {"batch_size": 4 * draw.randint(1, 2), "drop_last": draw.random() < 0.4}
            given = {"device_mesh": mesh} if draw.random() < 0.5 else {}
            here: DataLoader[Any] = DataLoader(DATASETS[kind](), **options, replicate=True)
            if state is not None:
                here.load_state_dict(state)
            trainer = on("data", mesh).create(Trainer, kind, {**options, **workers, **given}, state)
            if not life:
                steps = draw.randint(0, 7)
                states = trainer.save(steps)
                steps_of(here, steps)
                state = json.loads(json.dumps(here.state_dict()))
                assert all(one == state for one in (states if mode == "threads" else [states]))
                continue
            found = trainer.epochs(2)
            ranks = [found[rank] for rank in mesh.collect_ranks] if mode == "threads" else [found]
            joined = [
                [[row for part in step for row in part] for step in zip(*epoch, strict=True)]
                for epoch in zip(*ranks, strict=True)
            ]
            assert joined == epochs_of(here, 2)
