"""The meshes of NeMo AutoModel's mesh_utils."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Layout
from .mesh import DeviceMesh
from .part import data_dims_by_name
from .sizes import check_divides, infer_sizes, whole_number


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


_FSDP2_VIEWS: dict[str, tuple[str, ...]] = {
    "dp": ("dp_replicate", "dp_shard"),
    "dp_shard_cp": ("dp_shard", "cp"),
    "dp_cp": ("dp_replicate", "dp_shard", "cp"),
}
_UNSUPPORTED: dict[type, tuple[str, ...]] = {
    FSDP2Config: (),
    MegatronFSDPConfig: ("pp", "ep"),
    DDPConfig: ("tp", "pp", "cp", "ep"),
}


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

    The backend nccl means cuda, any other cpu. `dp_size` is inferred when None, 0 or less. `dp_replicate_size` is for
    FSDP2 only and divides `dp_size`; None, 0 or less means 1. Unlike in `from_sizes`, a `world_size` of 1 is one rank.

    Raises:
        ValueError: For sizes that do not make up the world, or that the config cannot have.
    """
    if type(config) not in _UNSUPPORTED:
        raise ValueError(f"config={config!r} is unknown; use FSDP2Config, MegatronFSDPConfig or DDPConfig")
    name = type(config).__name__
    given = {"tp": tp_size, "pp": pp_size, "cp": cp_size, "ep": ep_size}
    sizes = {dim: whole_number(f"{dim}_size", size, 1) for dim, size in given.items()}
    replicas = 1 if dp_replicate_size is None else max(1, whole_number("dp_replicate_size", dp_replicate_size, None))
    if replicas > 1 and not isinstance(config, FSDP2Config):
        raise ValueError(f"dp_replicate_size={replicas} needs FSDP2Config, not {name}; use 1")
    for dim in _UNSUPPORTED[type(config)]:
        if sizes[dim] > 1:
            raise ValueError(f"{dim}_size={sizes[dim]} is not supported with {name}; use {dim}_size=1")
    asked = None if dp_size is None else whole_number("dp_size", dp_size, None)
    ep, cp, tp, pp = sizes.pop("ep"), sizes["cp"], sizes["tp"], sizes["pp"]
    dp = infer_sizes({"dp": asked if asked and asked > 0 else None, **sizes}, world_size, alone=True)["dp"]
    if isinstance(config, DDPConfig):
        return None, None
    views: dict[str, tuple[str, ...]] = {"dp_cp": ("dp", "cp")} if cp > 1 else {}
    dims = {"dp": dp, "cp": cp, "tp": tp}
    if isinstance(config, FSDP2Config):
        check_divides("dp_replicate_size", replicas, dp, f"dp_size={dp}")
        dims = {"pp": pp, "dp_replicate": replicas, "dp_shard": dp // replicas, "cp": cp, "tp": tp}
        views = _FSDP2_VIEWS
    mesh = DeviceMesh(
        tuple(dims),
        Layout.contiguous(list(dims.values())),
        "cuda" if config.backend == "nccl" else "cpu",
        tuple(data_dims_by_name(dims)),
        ep_size=ep,
        etp_size=1 if ep > 1 else 0,
        sequence_parallel=config.sequence_parallel and tp > 1,
        views=tuple(views.items()),
    )
    return mesh, mesh.expert["pp", "ep_shard", "ep"] if ep > 1 else None
