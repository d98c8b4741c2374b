"""The meshes of NeMo AutoModel's mesh_utils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twinkle_mesh.layout.layout import Layout
from twinkle_mesh.mesh import DeviceMesh
from twinkle_mesh.rules.checks import at_least_one, check_divides, whole_number
from twinkle_mesh.rules.rule_error import RuleError
from twinkle_mesh.rules.sizes import infer_sizes

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class FSDP2Config:
    """Fully sharded data parallelism by torch, with replication, pipeline, context, tensor and expert parallelism."""

    sequence_parallel: bool = False
    backend: str = "nccl"


@dataclass(frozen=True)
class MegatronFSDPConfig:
    """Megatron's fully sharded data parallelism, with context and tensor parallelism."""

    sequence_parallel: bool = False
    backend: str = "nccl"


@dataclass(frozen=True)
class DDPConfig:
    """Replicas only. AutoModel uses no mesh for them."""

    backend: str = "nccl"


def create_device_mesh(
    config: FSDP2Config | MegatronFSDPConfig | DDPConfig,
    *,
    dp_size: int | None = None,
    dp_replicate_size: int | None = None,
    tp_size: int = 1,
    pp_size: int = 1,
    cp_size: int = 1,
    ep_size: int = 1,
    world_size: int,
) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    """Return the dense mesh and the mixture-of-experts mesh of a config.

    FSDP2 gives (pp, dp_replicate, dp_shard, cp, tp) with the views dp, dp_shard_cp and dp_cp, and with `ep_size` above
    1 the mesh (pp, ep_shard, ep) over all ranks. MegatronFSDP gives (dp, cp, tp), with the view dp_cp where `cp_size`
    is above 1, and None. DDP gives None twice.

    Args:
        config: The kind of parallelism and the backend: nccl means cuda, any other means cpu.
        dp_size: Data parallel ranks; inferred when None, 0 or less.
        dp_replicate_size: Replicas among them, for FSDP2 only; divides `dp_size`, and is 1 when None, 0 or less.
        tp_size: Tensor parallel ranks.
        pp_size: Pipeline stages.
        cp_size: Context parallel ranks.
        ep_size: Expert parallel ranks.
        world_size: Number of ranks, which the sizes have to make up.

    Raises:
        ValueError: for sizes that do not make up the world, or that the config cannot have.
    """
    if not isinstance(config, (FSDP2Config, MegatronFSDPConfig, DDPConfig)):
        raise ValueError(f"config={config!r} is unknown; use FSDP2Config, MegatronFSDPConfig or DDPConfig")
    fields = {
        "dp_size": dp_size,
        "dp_replicate_size": dp_replicate_size,
        "tp_size": tp_size,
        "pp_size": pp_size,
        "cp_size": cp_size,
        "ep_size": ep_size,
        "world_size": world_size,
    }
    try:
        return _meshes(config, fields)
    except RuleError as error:
        raise error.fitting(lambda others: _meshes(config, others), fields) from None


def _meshes(
    config: FSDP2Config | MegatronFSDPConfig | DDPConfig, fields: Mapping[str, Any]
) -> tuple[DeviceMesh | None, DeviceMesh | None]:
    name = type(config).__name__
    sizes = {field: at_least_one(f"{field}_size", fields[f"{field}_size"]) for field in ("tp", "pp", "cp", "ep")}
    dp_size, dp_replicate_size = fields["dp_size"], fields["dp_replicate_size"]
    replicas = 1 if dp_replicate_size is None else max(1, whole_number("dp_replicate_size", dp_replicate_size))
    if replicas > 1 and not isinstance(config, FSDP2Config):
        problem = f"dp_replicate_size={replicas} needs FSDP2Config, not {name}"
        raise RuleError(problem, {"dp_replicate_size": [1]}, named=False)
    if isinstance(config, DDPConfig):
        _refuse(name, sizes, ("tp", "pp", "cp", "ep"))
    elif isinstance(config, MegatronFSDPConfig):
        _refuse(name, sizes, ("pp", "ep"))
    dense = {field: sizes[field] for field in ("pp", "cp", "tp") if sizes[field] > 1}
    given = None if dp_size is None else whole_number("dp_size", dp_size)
    given = None if given is None or given <= 0 else given
    world = _world(fields["world_size"], given, dense)
    dp = infer_sizes({"dp": given, **dense}, world)["dp"]
    if isinstance(config, DDPConfig):
        return None, None
    device_type = "cuda" if config.backend == "nccl" else "cpu"
    sequence_parallel = config.sequence_parallel and sizes["tp"] > 1
    if isinstance(config, MegatronFSDPConfig):
        mesh = DeviceMesh(
            Layout.contiguous((dp, sizes["cp"], sizes["tp"])),
            ("dp", "cp", "tp"),
            device_type=device_type,
            sequence_parallel=sequence_parallel,
            views=(("dp_cp", ("dp", "cp")),) if sizes["cp"] > 1 else (),
        )
        return mesh, None
    check_divides("dp_replicate_size", replicas, dp, f"dp_size={dp}")
    stage = world // sizes["pp"]
    taken_from = f"(world_size={world} / pp_size={sizes['pp']})"
    check_divides("ep_size", sizes["ep"], stage, f"the {stage} ranks of a pipeline stage {taken_from}")
    mesh = DeviceMesh(
        Layout.contiguous((sizes["pp"], replicas, dp // replicas, sizes["cp"], sizes["tp"])),
        ("pp", "dp_replicate", "dp_shard", "cp", "tp"),
        device_type=device_type,
        ep_size=sizes["ep"],
        etp_size=1 if sizes["ep"] > 1 else None,
        sequence_parallel=sequence_parallel,
        views=(
            ("dp", ("dp_replicate", "dp_shard")),
            ("dp_shard_cp", ("dp_shard", "cp")),
            ("dp_cp", ("dp_replicate", "dp_shard", "cp")),
        ),
    )
    return mesh, mesh.expert["pp", "ep_shard", "ep"] if sizes["ep"] > 1 else None


def _world(world_size: object, dp_size: int | None, dense: Mapping[str, int]) -> int:
    """Return the world size. Unlike in `from_sizes`, a world size of 1 means one rank."""
    world = at_least_one("world_size", world_size)
    if world == 1:
        for name, size in {"dp": dp_size or 1, **dense}.items():
            if size > 1:
                raise RuleError(f"{name}_size={size} does not divide world_size=1", {f"{name}_size": [1]}, named=False)
    return world


def _refuse(config: str, sizes: Mapping[str, int], fields: tuple[str, ...]) -> None:
    for field in fields:
        if sizes[field] > 1:
            problem = f"{field}_size={sizes[field]} is not supported with {config}"
            raise RuleError(problem, {f"{field}_size": [1]})
