"""Where a model's parts lie: the device, process group and mesh of a rank, and how weights come into its parts.

A folder's weights are brought into the divided model, each rank its slices; those of a config are drawn.
Invariant: until its filler has run, a skeleton's parameters are memory that nobody has touched, which takes none.
"""

from __future__ import annotations

import os
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from twinkle_engines.checkpoints.checkpoint import agreed
from twinkle_engines.models.forward import SCORE, head_name, put_number_head
from twinkle_mesh import DeviceMesh
from twinkle_remote import current_worker
from twinkle_remote.backends.support import active

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from torch import Tensor
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh
    from transformers import PretrainedConfig

    from twinkle_remote import WorkerContext

    Filler: TypeAlias = Callable[[Any], None]
    """Brings its weights into a skeleton that was divided, or is whole; all ranks call it."""


@dataclass(frozen=True)
class ModelLayout:
    """Where this rank's part of a model lies.

    Attributes:
        device: This rank's device.
        mesh: Torch's mesh, always with the dims dp (replicas), fsdp (shards) and tp.
    """

    device: torch.device
    mesh: TorchDeviceMesh

    @property
    def tp_size(self) -> int:
        """Number of tensor-parallel ranks."""
        return self.mesh["tp"].size()

    @property
    def world_size(self) -> int:
        """Number of all ranks."""
        return self.data_world_size * self.tp_size

    @property
    def is_first(self) -> bool:
        """Whether this is the first rank, which writes what is written once."""
        return dist.get_rank() == 0

    @property
    def data_rank(self) -> int:
        """This rank's share of the data, from 0; the ranks of a tp group have the same."""
        return self.mesh.get_local_rank("dp") * self.mesh["fsdp"].size() + self.mesh.get_local_rank("fsdp")

    @property
    def data_world_size(self) -> int:
        """Number of shares of the data."""
        return self.mesh["dp"].size() * self.mesh["fsdp"].size()

    def sum_over_data(self, values: Sequence[float]) -> list[float]:
        """The sums of some values over all data ranks, which all call this."""
        return self._reduce(values, dist.ReduceOp.SUM, ("dp", "fsdp"))

    def max_over_all(self, value: float) -> float:
        """The largest of all ranks' values; all ranks call this."""
        return self._reduce([value], dist.ReduceOp.MAX, ("dp", "fsdp", "tp"))[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, which all call this."""
        found: list[Any] = [value] * dist.get_world_size()
        if len(found) > 1:
            dist.all_gather_object(found, value)
        return found

    def _reduce(self, values: Sequence[float], how: object, dims: Sequence[str]) -> list[float]:
        groups = [self.mesh.get_group(dim) for dim in dims if self.mesh[dim].size() > 1]
        tensor = torch.tensor(values, dtype=torch.float64, device=self.device if groups else "cpu")
        for group in groups:
            dist.all_reduce(tensor, op=how, group=group)
        return [float(value) for value in tensor]


def own_layout(engine: str) -> ModelLayout:
    """The layout of the component that is being built on this worker; starts torch's process group.

    It waits for the other ranks of the group, as torch's `init_process_group` does.

    Raises:
        ValueError: For a mesh with a dim or an attribute that engines do not have, or ranks that share a process.
    """
    worker = current_worker()
    mesh = worker.mesh or DeviceMesh.from_sizes(dp_size=worker.world_size)
    check_sizes(engine, mesh)
    device = own_device(mesh)
    _start_process_group(engine, worker, device)

    def rank_at(**coordinates: int) -> int:
        return mesh.rank_at(**{dim: coordinates.get(dim, 0) for dim in mesh.dim_names})

    sizes = [range(mesh.size(dim)) for dim in ("dp", "fsdp", "tp")]
    ranks = [[[rank_at(dp=d, fsdp=f, tp=t) for t in sizes[2]] for f in sizes[1]] for d in sizes[0]]
    return ModelLayout(device, DeviceMesh.from_ranks(ranks, ("dp", "fsdp", "tp"), device_type=device.type).to_torch())


def own_device(mesh: DeviceMesh | None) -> torch.device:
    """This rank's device: that of the mesh, or the CPU where there is no CUDA.

    Raises:
        ValueError: The group has GPUs, and torch sees none, or other devices.
    """
    kind = "cuda" if mesh is None else mesh.device_type
    of_group = _group_device_type()
    if kind != "cuda" or not torch.cuda.is_available():
        if kind == "cuda" and of_group not in ("CPU", None):
            raise ValueError(
                f"the group {current_worker().group!r} has {of_group}s, but torch {torch.__version__} sees none here "
                f'(CUDA {torch.version.cuda}): use a torch and a driver that fit, or a group of "CPU"'
            )
        return torch.device("cpu" if kind == "cuda" else kind)
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    return torch.device("cuda", torch.cuda.current_device())


def _group_device_type() -> str | None:
    """The device type of this worker's group, such as "GPU"; None where that is not known."""
    given = os.environ.get("TWINKLE_DEVICE_TYPE")  # set by the Ray backend
    runtime, name = active(), current_worker().group
    group = None if given or runtime is None or name is None else runtime.groups.get(name)
    return given if group is None else group.device_type


def check_sizes(engine: str, mesh: DeviceMesh) -> None:
    """Raise for a mesh that divides a model in ways that engines do not, such as by experts."""
    sizes = {dim: mesh.size(dim) for dim in mesh.dim_names if dim not in ("dp", "fsdp", "tp")}
    sizes |= {"ulysses": mesh.ulysses_size or 1, "vpp": mesh.vpp_size or 1, "ep": mesh.ep_size or 1}
    for dim, size in sizes.items():
        if size > 1:
            raise ValueError(
                f"{engine} divides a model over dp, fsdp and tp, but the mesh has {dim}_size={size}; use {dim}_size=1, "
                f"with dp, fsdp and tp sizes that multiply to the group's size, {mesh.world_size}"
            )


def _start_process_group(engine: str, worker: WorkerContext, device: torch.device) -> None:
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        if worker.world_size == 1:
            store = dist.HashStore()  # type: ignore[attr-defined]  # torch exports it without a stub
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
        elif os.environ.get("WORLD_SIZE") == str(worker.world_size):
            dist.init_process_group(backend)
        else:
            raise ValueError(
                f"{engine} on {worker.world_size} ranks needs a process for each, because torch's process group is one "
                "for each process; use the modes ray or local (also under torchrun), or a group of 1 rank"
            )
    elif dist.get_world_size() != worker.world_size:
        raise ValueError(
            f"{engine} on {worker.world_size} ranks, but torch's process group in this process has "
            f"{dist.get_world_size()}; components of one process have groups of one size"
        )


def skeleton(config: PretrainedConfig, kind: torch.dtype, is_lm: bool = True) -> Any:
    """A model without its weights, whose head has one number where it is no language model."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    with no_init_weights():
        model: Any = AutoModelForCausalLM.from_config(config, dtype=kind)
    model.tie_weights()
    if not is_lm:
        put_number_head(model)
    return model


def of_folder(
    source: str | PathLike[str], kind: torch.dtype, whole: Callable[[], Any], is_lm: bool = True
) -> tuple[Any, Filler, bool] | None:
    """A skeleton of a folder's model, its filler, and whether that reads slices; None where there are no safetensors.

    Where files have other names than the model's, as with fused experts, one rank reads the whole for all.
    """
    from safetensors import safe_open
    from transformers import AutoConfig, GenerationConfig

    folder = Path(source)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    shapes: dict[str, list[int]] = {}
    places: dict[str, Path] = {}
    for file in files:
        with safe_open(file, framework="pt") as opened:
            found = {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  no mapping
        shapes |= found
        places |= dict.fromkeys(found, file)
    config = AutoConfig.from_pretrained(folder)
    model = skeleton(config, kind, is_lm)
    pairs = [(a, b) for a, b in model.all_tied_weights_keys.items() if {a, b} <= places.keys()]
    if not all(_are_equal(places, a, b) for a, b in pairs):  # as in Transformers, what is there goes first
        for one in (config, config.get_text_config()):
            one.tie_word_embeddings = False
        model = skeleton(config, kind, is_lm)
    if (folder / "generation_config.json").exists():
        model.generation_config = GenerationConfig.from_pretrained(folder)
    model.name_or_path = model.config.name_or_path = str(source)
    own = {name: list(one.shape) for name, one in model.state_dict().items()}
    head = None if is_lm else head_name(model)
    names = {name: SCORE if name == head else name for name in own if name != head or SCORE in shapes}
    tied = model.all_tied_weights_keys
    missing = [name for name, there in names.items() if there not in shapes and tied.get(name) not in shapes]
    if missing or any(shapes[there] != own[name] for name, there in names.items() if there in shapes):
        return model, lambda model: _fill_from_first(model, whole), False
    return model, lambda model: _read(model, folder, {a: b for a, b in names.items() if b in shapes}), True


def _are_equal(places: dict[str, Path], first: str, second: str) -> bool:
    """Whether two weights in files are equal, read by some rows at a time."""
    from safetensors import safe_open

    with safe_open(places[first], framework="pt") as one, safe_open(places[second], framework="pt") as other:
        left, right = one.get_slice(first), other.get_slice(second)
        rows = range(0, left.get_shape()[0], 4096)
        return left.get_shape() == right.get_shape() and all(
            torch.equal(left[row : row + 4096], right[row : row + 4096]) for row in rows
        )


def drawn(
    config: PretrainedConfig, kind: torch.dtype, layout: ModelLayout | None, is_lm: bool = True
) -> tuple[Any, Filler | None]:
    """A model of a config, whose weights are a function of torch's seed; of several ranks the first one draws them."""
    from transformers import AutoModelForCausalLM

    own, seed = deepcopy(config), torch.initial_seed()  # Transformers writes the dtype into it

    def whole() -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: Any = AutoModelForCausalLM.from_config(own, dtype=kind)
        if not is_lm:
            put_number_head(model)
        return model

    if layout is None or layout.world_size == 1:
        return whole(), None
    return skeleton(own, kind, is_lm), lambda model: _fill_from_first(model, whole)


def _read(model: Any, folder: Path, names: dict[str, str]) -> None:
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    state = _state(model)
    load({there: state[name] for name, there in names.items()}, storage_reader=HuggingFaceStorageReader(str(folder)))


def _fill_from_first(model: Any, whole: Callable[[], Any]) -> None:
    """Give each rank its part of tensors that the first rank reads, one after the other."""
    found: dict[str, Tensor] = {}
    with agreed("reading the model"):
        if dist.get_rank() == 0:
            found = whole().state_dict()
    for name, own in _state(model).items():
        flag = [name in found]
        dist.broadcast_object_list(flag, src=0)
        if flag[0]:  # else an adapter's
            given = found[name].to(own.device, own.dtype) if name in found else torch.empty(own.shape, dtype=own.dtype)
            dist.broadcast(given := given.to(own.device).contiguous(), src=0)
            _put(own, given)


def _put(own: Any, value: Tensor) -> None:
    """Write this rank's part of a whole tensor: tp has divided it first, and FSDP2 what that left to a rank."""
    if not isinstance(own, DTensor):
        own.copy_(value)
        return
    for dim, placement in reversed([*enumerate(own.placements)]):
        if (along := getattr(placement, "dim", None)) is not None:
            parts, rank = value.chunk(own.device_mesh.size(dim), along), own.device_mesh.get_local_rank(dim)
            value = parts[rank] if rank < len(parts) else value.narrow(along, 0, 0)
    own.to_local().copy_(value)


def _state(model: Any) -> dict[str, Any]:
    """The weights by their names without what peft adds around them."""
    return {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): one
        for name, one in model.state_dict().items()
    }
