from __future__ import annotations

import pytest
import torch
from torch.distributed import ReduceOp

from twinkle_ray.collective import Collective


def test_one_process_gets_back_what_it_gives() -> None:
    with Collective() as whole:
        assert whole.local is whole and whole.tp_world is whole and whole.is_master
        assert (whole.rank, whole.world_size, whole.ranks, whole.local_rank) == (0, 1, (0,), 0)
        assert (whole.dp_rank, whole.dp_world_size, whole.tp_rank, whole.tp_world_size) == (0, 1, 0, 1)
        assert whole.default_device == torch.device("cpu")
        assert whole.process_group is None and whole.tp_mesh is None and whole.dp_mesh is None
        value = torch.arange(6.0).view(2, 3)
        whole.barrier()
        whole.all_reduce(value, ReduceOp.AVG)
        whole.broadcast(value)
        gathered = torch.empty(1, 2, 3)
        whole.all_gather(gathered, value)
        parts = [torch.empty(2, 3)]
        whole.all_gather_to_list(parts, value)
        assert gathered[0].equal(value) and parts[0].equal(value) and value.sum() == 15
        objects: list[object] = [{"a": 1}]
        whole.broadcast_objects(objects)
        assert objects == [{"a": 1}] and whole.all_gather_objects("x") == ["x"]
        with pytest.raises(ValueError, match="source_rank=1"):
            whole.broadcast(value, 1)
