"""Who reads what: in every start, with every ownership of objects, each row comes once over the data ranks, or an error
comes to all of them.

`TWINKLE_PROGRAMS=1000 python -m pytest tests/data/test_who.py` runs as many programs.
"""

from __future__ import annotations

import contextvars
import os
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tests.data.test_next_passes import Walk
from torch.utils.data import default_collate

from twinkle_data import DataLoader, DeviceMeshSampler
from twinkle_mesh import DeviceGroup, DeviceMesh, use_rank
from twinkle_remote import current_place, on, remote_class, remote_function, session

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


PROGRAMS = int(os.environ.get("TWINKLE_PROGRAMS", "80"))
SIZES = [{"dp_size": 2}, {"dp_size": 3}, {"dp_size": 2, "tp_size": 2}, {"pp_size": 2, "dp_size": 2}, {"fsdp_size": 2}]
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Plan(NamedTuple):
    """One program: where it runs, the mesh, what reads which dataset, and how it differs by rank."""

    start: str
    sizes: dict[str, int]
    loader_mesh: str
    dataset: str
    owned: str
    rows: int
    shuffle: bool
    drop_last: bool
    differs: bool
    collate: bool


def drawn(seed: int) -> Plan:
    draw = random.Random(seed)
    return Plan(
        draw.choice(["threads", "threads", "context", "context", "group", "group", "launcher", "use_rank"]),
        draw.choice(SIZES),
        draw.choice(["own", "own", "none", "other"]),
        draw.choice(["list", "columns", "walk", "set", "sampler"]),
        draw.choice(["factory", "shared", "made"]),
        draw.choice([1, 7, 12, 24, 25]),
        draw.random() < 0.4,
        draw.random() < 0.4,
        draw.random() < 0.2,
        draw.random() < 0.3,
    )


def mesh_of(plan: Plan) -> DeviceMesh:
    return DeviceMesh.from_sizes(**cast("Any", plan.sizes))


def given_mesh(plan: Plan) -> DeviceMesh | None:
    if plan.loader_mesh == "other":
        return DeviceMesh.from_sizes(dp_size=2 * mesh_of(plan).world_size)
    return mesh_of(plan) if plan.loader_mesh == "own" else None


def dataset_of(plan: Plan, shared: Any) -> Any:
    """The dataset, or what builds it; another one on odd ranks where the plan says so."""

    def build() -> Any:
        rank = current_place().rank if plan.differs and plan.start == "group" else 0
        rows = list(range(plan.rows))
        rows = rows[::-1] if rank % 2 else rows
        if plan.dataset == "walk":
            return Walk(plan.rows)
        if plan.dataset == "set":
            return {str(row) for row in rows}
        return {"row": rows} if plan.dataset == "columns" else rows

    if plan.owned == "factory" or (plan.differs and plan.start == "group"):
        return build
    return shared if plan.owned == "shared" else build()


def batches(plan: Plan, dataset: Any, **where: Any) -> Any:
    collate = default_collate if plan.collate and plan.dataset != "set" else None
    shuffle = plan.shuffle and plan.dataset not in ("walk", "set")
    options: Any = {"shuffle": shuffle, "drop_last": plan.drop_last, "collate_fn": collate, **where}
    return DataLoader(dataset, batch_size=12, **options)


def rows_of(plan: Plan, loader: Any) -> list[int]:
    """The rows of an epoch, without padding."""
    if isinstance(loader, DeviceMeshSampler):
        return sorted({row for batch in loader for row in batch})
    found: list[int] = []
    for _ in loader:
        info = loader.info
        found += [index for index, valid in zip(info.indices, info.valid, strict=True) if valid]
    return found


def reads(plan: Plan, shared: Any) -> list[int]:
    """What one rank does in its own code."""
    if plan.dataset == "sampler":
        mesh = given_mesh(plan) or mesh_of(plan)
        cut = [list(range(start, min(start + 12, plan.rows))) for start in range(0, plan.rows, 12)]
        return rows_of(plan, DeviceMeshSampler(cut, mesh))
    return rows_of(plan, batches(plan, dataset_of(plan, shared), device_mesh=given_mesh(plan)))


def outcome(read: Callable[[], list[int]]) -> Any:
    try:
        return read()
    except Exception as error:  # the program looks at its type
        return f"{type(error).__name__}: {error}"


@remote_class()
class Reader:
    def __init__(self, plan: Plan, shared: Any) -> None:
        self.plan, self.shared = plan, shared

    @remote_function(dispatch="all", collect="none", lazy_collect=False)
    def read(self) -> Any:
        if self.plan.start == "threads":
            return outcome(lambda: reads(self.plan, self.shared))
        with ThreadPoolExecutor(1) as pool:
            run: Any = contextvars.copy_context().run  # without it, the thread would be the driver's
            return pool.submit(run, lambda: outcome(lambda: reads(self.plan, self.shared))).result()


def in_workers(plan: Plan) -> list[Any]:
    shared = Walk(plan.rows) if plan.dataset == "walk" else list(range(plan.rows))
    mesh = mesh_of(plan)
    with session("threads", groups=[DeviceGroup("readers", mesh.world_size, "CPU")]):
        reader = on("readers", mesh).create(Reader, plan, shared)
        found: Any = reader.read()
    return list(found)


def on_group(plan: Plan) -> list[Any]:
    mesh = mesh_of(plan)
    shared = Walk(plan.rows) if plan.dataset == "walk" else list(range(plan.rows))

    def read() -> list[int]:
        with session("threads", groups=[DeviceGroup("data", mesh.world_size, "CPU")]):
            dataset = dataset_of(plan, shared)
            return rows_of(plan, batches(plan, dataset, device_mesh=mesh, remote_group="data"))

    found = outcome(read)
    return [found if isinstance(found, str) or rank == 0 else [] for rank in range(mesh.world_size)]


def in_processes_of_a_launcher(plan: Plan, patch: pytest.MonkeyPatch) -> list[Any]:
    """One process plays all ranks, one after another."""
    found = []
    for rank in range(mesh_of(plan).world_size):
        patch.setenv("RANK", str(rank))
        patch.setenv("WORLD_SIZE", str(mesh_of(plan).world_size))
        found.append(outcome(lambda: reads(plan._replace(owned="made"), None)))
    return found


def in_blocks(plan: Plan) -> list[Any]:
    plan = plan._replace(loader_mesh="own", owned="made")
    found = []
    for rank in range(mesh_of(plan).world_size):
        with use_rank(rank):
            found.append(outcome(lambda: reads(plan, None)))
    return found


def check(plan: Plan, found: list[Any]) -> None:
    """Every data rank has its rows and no row comes twice; or all of them have an error of ours."""
    failed = [one for one in found if isinstance(one, str)]
    if failed:
        assert len(failed) == len(found), (plan, found)
        assert not any(text.startswith(("Index", "Attribute", "Assert", "Key", "StopIt")) for text in failed), failed
        return
    launched = plan.start == "launcher" and plan.loader_mesh == "none" and plan.dataset != "sampler"
    mesh = DeviceMesh.from_sizes(dp_size=len(found)) if launched else mesh_of(plan)
    by_data_rank: dict[int, list[int]] = {}
    for rank, rows in enumerate(found):
        if plan.start != "group":
            assert by_data_rank.setdefault(mesh.data_rank(rank), rows) == rows, (plan, found)
        else:
            by_data_rank[rank] = rows
    delivered = sorted(row for rows in by_data_rank.values() for row in rows)
    whole = plan.rows - plan.rows % 12 if plan.drop_last and plan.dataset != "sampler" else plan.rows
    if plan.dataset == "sampler" and 0 < plan.rows % 12 < mesh.data_world_size:  # the last batch is filled up
        assert sorted(set(delivered)) == list(range(whole)), (plan, found)
    elif plan.shuffle and whole != plan.rows and plan.dataset in ("list", "columns"):
        assert len(delivered) == len(set(delivered)) == whole, (plan, found)
    else:
        assert delivered == list(range(whole)), (plan, found)


def run_one(seed: int, patch: pytest.MonkeyPatch) -> bool:
    for name in NAMES:
        patch.delenv(name, raising=False)
    plan = drawn(seed)
    if plan.start == "group":
        plan = plan._replace(dataset="list" if plan.dataset == "sampler" else plan.dataset)
        found = on_group(plan)
    elif plan.start == "launcher":
        found = in_processes_of_a_launcher(plan, patch)
    elif plan.start == "use_rank":
        found = in_blocks(plan)
    else:
        found = in_workers(plan)
    check(plan, found)
    return not isinstance(found[0], str)


def test_each_row_comes_once_or_an_error_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sum(run_one(seed, monkeypatch) for seed in range(PROGRAMS))
    assert right > PROGRAMS // 4
