from __future__ import annotations

import pytest

from twinkle_mesh import DeviceMesh


def test_the_figures_of_a_small_mesh() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, pp_size=2, tp_size=2).with_nodes(4)
    report = mesh.explain(bytes=1000)
    assert [(r.dim, r.size, r.groups, r.nodes) for r in report] == [
        ("pp", 2, 8, (2, 2)),
        ("dp", 4, 4, (2, 2)),
        ("tp", 2, 8, (1, 1)),
    ]
    # Ring algorithms: an all-reduce sends 2 * (n - 1) / n of the bytes from each rank, a stage sends all to the next.
    assert (report["dp"].collective, report["dp"].bytes_per_rank, report["dp"].bytes_total) == (
        "all-reduce",
        1500,
        24000,
    )
    assert (report["tp"].collective, report["tp"].bytes_per_rank, report["tp"].bytes_total) == (
        "all-reduce",
        1000,
        16000,
    )
    assert (report["pp"].collective, report["pp"].bytes_per_rank, report["pp"].bytes_total) == ("send", 1000, 8000)
    with pytest.raises(KeyError, match="cp"):
        report["cp"]


def test_sharding_experts_and_ulysses() -> None:
    mesh = DeviceMesh.from_sizes(fsdp_size=8, tp_size=2, ep_size=4, etp_size=1, ulysses_size=2)
    report = mesh.explain(bytes=800)
    assert report["fsdp"].collective == report["ep_shard"].collective == "all-gather"
    assert (report["fsdp"].bytes_per_rank, report["fsdp"].nodes) == (700, None)
    assert (report["ulysses"].collective, report["ulysses"].size, report["ulysses"].groups) == ("all-to-all", 2, 8)
    assert (report["ep"].collective, report["ep"].bytes_per_rank, report["ep"].groups) == ("all-to-all", 600, 4)
    assert report["etp"].bytes_total == 0


@pytest.mark.parametrize("cut", [None, {"a": 3, "b": 4}])
def test_ulysses_of_dims_that_hold_more_than_data(cut: dict[str, int] | None) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=3, ulysses_size=2).with_nodes([3, 9], tp_crossing="allow")
    joined = mesh.flatten(name="x") if cut is None else mesh.flatten(name="x").unflatten("x", cut)
    assert joined.explain(bytes=8)["ulysses"] == mesh.explain(bytes=8)["ulysses"]
    assert joined.explain()["ulysses"].nodes == (1, 2)


def test_the_table_labels_estimates() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=5, tp_size=4).with_nodes([8, 6, 6], tp_crossing="allow")
    lines = str(mesh.explain(bytes=3 * 2**20)).splitlines()
    assert lines == [
        "dp=5, tp=4 · 20 ranks · on 3 unequal nodes · data world size 5 · cuda",
        "dim  size  groups  nodes/group  collective  bytes/rank (est.)  all ranks (est.)",
        "dp      5       4            3  all-reduce            4.8 MiB          96.0 MiB",
        "tp      4       5       1 to 2  all-reduce            4.5 MiB          90.0 MiB",
        "Bytes are estimates: ring algorithms over 3.0 MiB in each group, nothing overlapped.",
    ]


def test_unknown_nodes_and_dims_of_size_1() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, tp_size=2, vpp_size=2, sequence_parallel=True, ep_size=2, etp_size=1)
    text = str(mesh.explain(bytes=0))
    assert "unknown" in text
    assert "pp=2, dp=1, tp=2 · 4 ranks · data world size 1 · ep=2 · vpp=2 · sequence parallel · cuda" in text
    assert DeviceMesh.from_sizes().explain()["dp"].bytes_total == 0
    assert str(DeviceMesh.from_sizes(dp_size=2).at(dp=1).explain()).startswith("no dims · 1 rank ·")


@pytest.mark.parametrize(("size", "said"), [(-1, "bytes=-1 must be at least 0"), (1.5, "bytes=1.5 must be a whole")])
def test_errors(size: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DeviceMesh.from_sizes(dp_size=2).explain(bytes=size)
