"""Rows move between the two nodes of a cluster, not values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

NODES = """
    import numpy as np
    import torch
    import ray
    from program_tools import start_cluster
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote.backends.support import call_of

    @twinkle.remote_class()
    class Part:
        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, numbers):
            wide = np.repeat(np.asarray(numbers, dtype=np.float64), 50_000).reshape(len(numbers), -1)
            return {"x": wide, "t": torch.from_numpy(wide), "rows": [str(number) * 20_000 for number in numbers]}

        @twinkle.remote_function(dispatch="all", lazy_collect=False)
        def whole(self, value):
            value["t"][twinkle.current_worker().rank] = 5
            return float(value["t"].sum()), float(value["x"].sum())

        @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
        def first(self, batch):
            numbers = batch["x"][:, 0].tolist()
            assert batch["t"][:, 0].tolist() == numbers
            return [numbers[i] for i, row in enumerate(batch["rows"])]

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=1, object_store_memory=300 << 20)
        cluster.add_node(num_cpus=0, resources={"far": 4}, object_store_memory=300 << 20)
        groups = [DeviceGroup("near", 1, "CPU"), DeviceGroup("far", 4, "far")]
        with twinkle.session("ray", groups=groups, address=cluster.address):
            near = Part(remote_group="near", device_mesh=DeviceMesh.from_sizes(dp_size=1))
            far = Part(remote_group="far", device_mesh=DeviceMesh.from_sizes(dp_size=4))
            made = near.make(list(range(40)))
            made.wait(30)
            (produced,) = twinkle.stats()[-1].produced.values()
            assert len(call_of(made).outcome(0).payload.refs) >= 20

            def check(rows, most):
                read = far.first(twinkle.take(made, rows))
                assert list(read) == list(rows), (list(read), rows)
                fetched = twinkle.stats()[-1].worker_fetched  # with what else is in the pieces
                assert sum(fetched.values()) <= most * produced, (rows, fetched, produced)

            check(range(40), 1.05)
            check(range(30, 34), 0.25)
            shuffled = [7, 39, 3, 3, 20, 8, 0, 21]
            check(shuffled, 0.6)
            assert twinkle.get(twinkle.select(twinkle.take(made, [5, 1]), "rows"))["rows"][1] == "1" * 20_000
            value = {"t": torch.ones(1 << 20), "x": np.ones(1 << 20)}
            expected = (1 << 20) + 4.0, float(1 << 20)
            assert near.whole(value) == expected
            for _ in range(2):
                assert far.whole(value) == [expected] * 4
            assert far.whole(made) == [
                (float(wide.sum()) - wide[rank].sum() + 5 * 50_000, float(wide.sum()))
                for wide in [np.repeat(np.arange(40.0), 50_000).reshape(40, -1)] for rank in range(4)
            ]
            print("READY")
        cluster.shutdown()
"""


def test_rows_move_between_nodes_not_values(program: Callable[..., Any]) -> None:
    assert "READY" in program(NODES).finish(110)
