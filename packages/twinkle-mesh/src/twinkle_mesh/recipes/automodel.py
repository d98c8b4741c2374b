"""The meshes of NeMo AutoModel's mesh_utils."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from twinkle_mesh._messages import nearest_divisors, would
from twinkle_mesh.layout import Layout
from twinkle_mesh.mesh import DeviceMesh
from twinkle_mesh.sizes import at_least_one, infer, whole

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
    """Replicas only, for which AutoModel uses no mesh."""

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
        config: What is to be built, and over which backend: nccl means cuda, any other means cpu.
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
        raise ValueError(f"config={config!r} is unknown; FSDP2Config, MegatronFSDPConfig or DDPConfig would do")
    name = type(config).__name__
    sizes = {
        field: at_least_one(f"{field}_size", size)
        for field, size in (("tp", tp_size), ("pp", pp_size), ("cp", cp_size), ("ep", ep_size))
    }
    replicas = 1 if dp_replicate_size is None else max(1, whole("dp_replicate_size", dp_replicate_size))
    if replicas > 1 and not isinstance(config, FSDP2Config):
        raise ValueError(f"dp_replicate_size={replicas} needs FSDP2Config, not {name}; leave it out, or 1 would do")
    if isinstance(config, DDPConfig):
        _refuse(name, sizes, ("tp", "pp", "cp", "ep"))
    elif isinstance(config, MegatronFSDPConfig):
        _refuse(name, sizes, ("pp", "ep"))
    dense = {field: sizes[field] for field in ("pp", "cp", "tp") if sizes[field] > 1}
    given = None if dp_size is None or whole("dp_size", dp_size) <= 0 else dp_size
    dp = infer({"dp": given, **dense}, _world(world_size, given, dense))["dp"]
    if isinstance(config, DDPConfig):
        return None, None
    device_type = "cuda" if config.backend == "nccl" else "cpu"
    sequence_parallel = config.sequence_parallel and tp_size > 1
    if isinstance(config, MegatronFSDPConfig):
        mesh = DeviceMesh(
            Layout.contiguous((dp, sizes["cp"], sizes["tp"])),
            ("dp", "cp", "tp"),
            device_type=device_type,
            sequence_parallel=sequence_parallel,
            views=(("dp_cp", ("dp", "cp")),) if cp_size > 1 else (),
        )
        return mesh, None
    if dp % replicas:
        near = nearest_divisors(dp, replicas)
        raise ValueError(f"dp_replicate_size={replicas} does not divide dp_size={dp}; {would(near)}")
    stage = world_size // sizes["pp"]
    if stage % sizes["ep"]:
        near = nearest_divisors(stage, sizes["ep"])
        raise ValueError(
            f"ep_size={ep_size} does not divide the {stage} ranks of a pipeline stage (world_size={world_size} / "
            f"pp_size={pp_size}); {would(near)}"
        )
    mesh = DeviceMesh(
        Layout.contiguous((sizes["pp"], replicas, dp // replicas, sizes["cp"], sizes["tp"])),
        ("pp", "dp_replicate", "dp_shard", "cp", "tp"),
        device_type=device_type,
        ep_size=ep_size,
        etp_size=1 if ep_size > 1 else None,
        sequence_parallel=sequence_parallel,
        views=(
            ("dp", ("dp_replicate", "dp_shard")),
            ("dp_shard_cp", ("dp_shard", "cp")),
            ("dp_cp", ("dp_replicate", "dp_shard", "cp")),
        ),
    )
    return mesh, mesh.expert["pp", "ep_shard", "ep"] if ep_size > 1 else None


def _world(world_size: int, dp_size: int | None, dense: Mapping[str, int]) -> int:
    """Return the world size, which is required here: a world of 1 is one rank, not "not given"."""
    world = at_least_one("world_size", world_size)
    if world == 1:
        for name, size in {"dp": dp_size or 1, **dense}.items():
            if size > 1:
                raise ValueError(f"{name}_size={size} does not divide world_size=1; 1 would")
    return world


def _refuse(config: str, sizes: Mapping[str, int], fields: tuple[str, ...]) -> None:
    for field in fields:
        if sizes[field] > 1:
            raise ValueError(f"{field}_size={sizes[field]} is not supported with {config}; {field}_size=1 would do")
