"""The picture of an order says what will be delivered."""

from pathlib import Path

import numpy as np
import pytest

from twinkle_data import Batch, DataLoader, order_table, plot_order
from twinkle_mesh import DeviceMesh


def test_the_table_is_what_the_loader_delivers() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4)
    loader: DataLoader[Batch[int]] = DataLoader(
        list(range(50)), batch_size=16, shuffle=True, tail="pad", device_mesh=mesh
    )
    next(loader)
    table = order_table(loader, epochs=2)
    delivered = [batch for _ in range(2) for batch in loader]
    assert table["index"].tolist() == [index for batch in delivered for index in batch.indices]
    assert table["valid"].tolist() == [flag for batch in delivered for flag in batch.valid]
    assert table["epoch"].tolist() == [batch.epoch for batch in delivered for _ in batch]
    assert table["row"].tolist() == list(range(len(table["row"])))
    assert np.bincount(table["data_rank"]).tolist() == [len(table["row"]) // 4] * 4


@pytest.mark.slow
def test_the_picture_is_drawn(tmp_path: Path) -> None:
    loader: DataLoader[Batch[int]] = DataLoader(list(range(500)), batch_size=16, shuffle=True, tail="pad")
    figure = plot_order(loader, tmp_path / "order.png", epochs=2)
    order, cover = figure.axes
    assert "epoch 0, position 0" in order.get_title()
    assert "500 of 500" in cover.get_title()
    assert "2 to 2 times each" in cover.get_title()
    assert (tmp_path / "order.png").read_bytes().startswith(b"\x89PNG")


def test_a_stream_cannot_be_drawn() -> None:
    with pytest.raises(TypeError, match="has no length"):
        order_table(DataLoader(lambda: iter(range(3)), batch_size=1))
