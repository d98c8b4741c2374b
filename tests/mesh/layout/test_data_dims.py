"""Names of dims: those of each library say whether rows differ along them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from twinkle_mesh import DeviceMesh

# Names as the libraries give them, with the dims of which every rank sees rows of its own.
MESHES = {
    "torch": (("dp", "tp"), ("dp",)),
    "torch, hybrid": (("replicate", "shard"), ("replicate", "shard")),
    "torchtitan": (("dp_replicate", "dp_shard_mod_ep", "dp_shard_in_ep", "cp", "tp"), range(3)),
    "Lightning": (("data_parallel", "tensor_parallel"), ("data_parallel",)),
    "accelerate": (("dp_replicate", "dp_shard", "cp", "sp", "tp"), ("dp_replicate", "dp_shard")),
    "verl": (("dp", "infer_tp", "infer_pp"), ("dp",)),
    "long names": (("pipeline_parallel", "data_parallel", "context_parallel", "sequence_parallel"), ("data_parallel",)),
}


@pytest.mark.parametrize("library", MESHES)
def test_the_names_of_libraries_are_known(library: str) -> None:
    names, data = MESHES[library]
    ranks = np.arange(2 ** len(names)).reshape([2] * len(names))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mesh = DeviceMesh.from_ranks(ranks, names)
    dims = [names[dim] if isinstance(dim, int) else dim for dim in data]
    assert mesh.data_dims == tuple(dims)
    for rank in mesh.ranks:
        number = 0
        for dim in dims:
            number = 2 * number + mesh.coordinate(rank)[dim]
        assert mesh.data_rank(rank) == number


@pytest.mark.parametrize("wrong", [0, None, slice(None), 1.5])
def test_what_is_no_name_is_refused_by_a_word(wrong: Any) -> None:
    mesh: Any = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    for ask in (mesh.__getitem__, mesh.group, mesh.groups, lambda dims: mesh.submesh(dims, 0)):
        with pytest.raises(TypeError, match="by name"):
            ask(wrong)
    with pytest.raises(TypeError, match="by name"):
        list(mesh)
    with pytest.raises(TypeError, match="by name"):
        mesh.unflatten("dp", [2, 1])
    with pytest.raises(TypeError, match="meshes"):
        mesh.concat(wrong, dim="dp")
