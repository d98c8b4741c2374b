"""What the names of dims say about data."""

from __future__ import annotations

from twinkle_mesh.rules.messages import would

from .data_layout import DataLayout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

DATA_DIMS = ("dp_replicate", "dp", "dp_shard", "fsdp")
"""Dims whose ranks see different samples, outermost in data order first."""
SAME_DATA = ("pp", "cp", "tp", "ep", "etp")
"""Dims whose ranks see the same samples."""


def data_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return those of the names that are data dims by their name, outermost in data order first."""
    held = set(names)
    return tuple([name for name in DATA_DIMS if name in held])


def checked_data_dims(given: Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return given data dims in data order; a dim of size 1 is one of them where its name is."""
    check_data_dims(given, sizes)
    carriers = tuple([name for name in given if sizes[name] > 1])
    small = data_order([name for name, size in sizes.items() if size == 1])
    return data_order((*small, *carriers)) if carriers == data_order(carriers) else (*small, *carriers)


def check_data_dims(given: Sequence[str], names: Iterable[str]) -> None:
    """Refuse data dims that are not there, are named twice, or whose ranks see the same samples."""
    dims = list(names)
    if not set(given) <= set(dims):
        raise ValueError(f"data_dims={given} names a dim that the mesh does not have; {would(map(repr, dims))}")
    if len(set(given)) != len(given):
        raise ValueError(f"data_dims={given} names a dim twice; once would")
    for name in given:
        if name in SAME_DATA:
            raise ValueError(f"data_dims={given} holds {name!r}, whose ranks see the same samples; leave it out")


def follow_names(
    data: DataLayout, ulysses: int, names: Sequence[str], fresh: Iterable[str], *, splits: bool = True
) -> tuple[DataLayout, int]:
    """Return data places, and the ulysses peers among them, once dims have taken new names.

    Args:
        data: The places before.
        ulysses: How many neighbouring places share their samples.
        names: All names, the new ones among them.
        fresh: The new names.
        splits: Whether a dim that kept the samples and takes the name of a data dim splits them from now on.
    """
    dims = {name: names.index(name) for name in fresh}
    alike = [dim for name, dim in dims.items() if name in SAME_DATA]
    found, peers = data.without(alike, ulysses)
    held = found.carriers()
    if splits:
        found = found.with_dims([dim for name, dim in dims.items() if name in DATA_DIMS and dim not in held])
    carriers = found.plain()
    if splits and dims and carriers is not None and peers == 1:
        taken = [names[dim] for dim in carriers]
        order = data_order(taken)
        if len(order) == len(taken) and list(order) != taken:
            found = DataLayout.of_dims(found.shape, [names.index(name) for name in order])
    return found, peers
