"""Dims that split the data, by their names."""

from __future__ import annotations

from twinkle_mesh.rules.messages import use_one_of

from .data_layout import DataLayout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DATA_DIMS = (
    *("dp_replicate", "replicate", "ddp", "dp", "data", "data_parallel"),
    *("dp_shard", "shard", "dp_shard_mod_ep", "dp_shard_in_ep", "fsdp"),
)
"""Dims whose ranks see different samples, outermost in data order first."""
SAME_DATA = (
    *("pp", "cp", "sp", "tp", "infer_pp", "infer_tp", "ep_shard", "efsdp", "ep", "etp"),
    *("pipeline_parallel", "context_parallel", "sequence_parallel", "tensor_parallel", "expert_parallel"),
)
"""Dims whose ranks see the same samples."""


def warn_of_unknown(sizes: Mapping[str, int], stacklevel: int) -> None:
    """Warn of dims above size 1 whose names do not say whether the samples differ along them.

    Args:
        sizes: The size of each dim.
        stacklevel: That of the warning in the caller.
    """
    unknown = [name for name, size in sizes.items() if size > 1 and name not in (*DATA_DIMS, *SAME_DATA)]
    if not unknown:
        return
    import warnings

    names = " and ".join(map(repr, unknown))
    split = data_order(sizes)
    warnings.warn(
        f"the names {names} do not say whether ranks along them see different samples, so they see the same ones: data "
        f"is divided over {split or 'no dim'}; where they divide it, use a name of the field, or "
        f"data_dims={(*unknown[:1], *split)!r} of from_ranks and from_torch",
        stacklevel=stacklevel + 1,
    )


def data_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that stand for data parallel dims, outermost in data order first."""
    held = set(names)
    return tuple([name for name in DATA_DIMS if name in held])


def ordered_data_dims(given: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the data dims in data order. A dim of size 1 is a data dim if its name stands for one."""
    check_data_dims(given, sizes)
    large = tuple([name for name in given if sizes[name] > 1])
    small = data_order([name for name, size in sizes.items() if size == 1])
    return data_order((*small, *large)) if large == data_order(large) else (*small, *large)


def check_data_dims(given: Sequence[str], names: Iterable[str]) -> None:
    """Raise for data dims that the mesh does not have, that are named twice, or whose ranks see the same samples."""
    dims = list(names)
    if not set(given) <= set(dims):
        raise ValueError(f"data_dims={given} names a dim that the mesh does not have; {use_one_of(map(repr, dims))}")
    if len(set(given)) != len(given):
        raise ValueError(f"data_dims={given} names a dim twice; name it once")
    for name in given:
        if name in SAME_DATA:
            raise ValueError(f"data_dims={given} holds {name!r}, whose ranks see the same samples; leave it out")


def follow_names(
    data: DataLayout, ulysses: int, names: Sequence[str], fresh: Iterable[str], *, splits: bool = True
) -> tuple[DataLayout, int]:
    """Return the positions in data order after dims got new names, and the ulysses size that is left.

    Args:
        data: The positions before.
        ulysses: How many neighbouring positions share their samples.
        names: All names of the mesh, with the new ones.
        fresh: The new names.
        splits: Whether a dim that did not split the data splits it once it has the name of a data dim.
    """
    dims = {name: names.index(name) for name in fresh}
    alike = [dim for name, dim in dims.items() if name in SAME_DATA]
    found, peers = data.without(alike, ulysses)
    held = found.dims_with_data()
    if splits:
        found = found.with_dims([dim for name, dim in dims.items() if name in DATA_DIMS and dim not in held])
    dims_with_data = found.row_major_dims()
    if splits and dims and dims_with_data is not None and peers == 1:
        taken = [names[dim] for dim in dims_with_data]
        order = data_order(taken)
        if len(order) == len(taken) and list(order) != taken:
            found = DataLayout.of_dims(found.shape, [names.index(name) for name in order])
    return found, peers
