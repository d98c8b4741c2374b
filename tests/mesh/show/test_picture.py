from __future__ import annotations

import io
import re
import textwrap
from xml.etree import ElementTree

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from rich.console import Console

from twinkle_mesh import DeviceMesh, Picture

law = settings(settings.get_profile("mesh"))


def drawn(text: str) -> str:
    return textwrap.dedent(text).lstrip("\n")


def test_a_grid_for_each_slice_with_one_rank_and_its_groups() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, pp_size=2, tp_size=2).with_nodes(2)
    assert mesh.describe(5) == drawn(
        r"""
        pp=2, dp=2, tp=2 · 8 ranks · on 2 nodes of 4 · data world size 2 · cuda

        pp=0
          dp \ tp  0    1
                 ┌────┬────┐
               0 │ 0  │ 1p │ node 0
               1 │ 2  │ 3  │ node 0
                 └────┴────┘

        pp=1
          dp \ tp  0    1
                 ┌────┬────┐
               0 │ 4t │[5] │ node 1
               1 │ 6  │ 7d │ node 1
                 └────┴────┘

        [5]  pp=1 dp=0 tp=1  data rank 0 of 2  node 1
        p  pp group [1, 5]
        d  dp group [5, 7]
        t  tp group [4, 5]
        """
    )


def test_lines_are_doubled_between_nodes() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=4, tp_size=3).with_nodes([7, 5], tp_crossing="allow")
    assert mesh.describe() == drawn(
        r"""
        dp=4, tp=3 · 12 ranks · on 2 unequal nodes · data world size 4 · cuda

          dp \ tp  0    1    2
                 ┌────┬────┬────┐
               0 │  0 │  1 │  2 │ node 0
               1 │  3 │  4 │  5 │ node 0
                 ├    ┼════┼════┤
               2 │  6 ║  7 │  8 │ nodes 0, 1
                 ├════┼    ┼    ┤
               3 │  9 │ 10 │ 11 │ node 1
                 └────┴────┴────┘
        """
    )


def test_one_dim_is_wrapped_by_node() -> None:
    assert DeviceMesh.from_sizes(dp_size=6).with_nodes(2).describe(4) == drawn(
        """
        dp=6 · 6 ranks · on 2 nodes of 3 · data world size 6 · cuda

          dp  +0  +1  +2
            ┌───┬───┬───┐
          0 │ 0 │ 1 │ 2 │ node 0
            ├═══┼═══┼═══┤
          3 │ 3 │[4]│ 5 │ node 1
            └───┴───┴───┘

        [4]  dp=4  data rank 4 of 6  node 1
        """
    )


def test_a_large_world_is_folded_around_the_highlighted_rank() -> None:
    mesh = DeviceMesh.from_sizes(world_size=131_072, pp_size=16, tp_size=8, cp_size=2, ep_size=8)
    picture = mesh.with_nodes(ranks_per_node=8).describe(70_000)
    assert len(picture) < 5000
    assert max(map(len, picture.splitlines()[2:-8])) <= 110
    titles = [line for line in picture.splitlines() if line.startswith("pp=") and "·" not in line]
    assert titles == ["pp=0 dp=0", "pp=0 dp=1", "pp=8 dp=279", "pp=15 dp=511"]
    assert picture.splitlines().count("...") == 2
    assert "[70000]  pp=8 dp=279 cp=0 tp=0  data rank 279 of 512  node 8750  experts: pp=8 ep_shard=" in picture
    assert " 131071 " in picture


def test_dims_of_size_1_are_left_out() -> None:
    mesh = DeviceMesh.from_sizes(pp_size=1, dp_size=2, cp_size=1, tp_size=2).expert
    assert mesh.describe(2) == drawn(
        r"""
        pp=1, ep_shard=2, ep=1, etp=2 · 4 ranks · cuda

          ep_shard \ etp  0    1
                        ┌────┬────┐
                      0 │ 0s │ 1  │
                      1 │[2] │ 3t │
                        └────┴────┘

        [2]  pp=0 ep_shard=1 ep=0 etp=0
        s  ep_shard group [0, 2]
        t  etp group [2, 3]
        """
    )


def test_long_rows_and_columns_are_folded() -> None:
    picture = DeviceMesh.from_sizes(dp_size=100, tp_size=100).describe(5050)
    lines = picture.splitlines()
    assert max(map(len, lines[2:-4])) <= 110
    assert len(lines) < 25
    assert "[5050]" in picture
    assert "..." in lines[2]
    assert " 9999 " in picture


@law
@given(st.from_type(DeviceMesh), st.booleans(), st.data())
def test_any_mesh_can_be_drawn(mesh: DeviceMesh, on_nodes: bool, data: st.DataObject) -> None:
    if on_nodes:
        mesh = mesh.with_nodes(ranks_per_node=data.draw(st.integers(1, 9)), tp_crossing="allow")
    rank = data.draw(st.none() | st.sampled_from(list(mesh.ranks)))
    picture = mesh.describe(rank)
    assert isinstance(picture, Picture)
    body = picture.partition("\n\n")[2]
    shown = {int(number) for number in re.findall(r"[│║] *\[?(\d+)", body)}
    assert shown <= set(mesh.ranks)
    assert len(shown) == mesh.world_size or "..." in picture
    assert rank is None or f"[{rank}]" in body
    boxes = [line for line in picture.splitlines() if line.lstrip()[:1] in ("┌", "└")]
    assert boxes
    root = ElementTree.fromstring(mesh.svg(rank))
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {str(rank) for rank in shown} <= set(texts)


@law
@given(st.from_type(DeviceMesh), st.booleans(), st.integers(1, 130), st.data())
def test_no_line_is_wider_than_asked(mesh: DeviceMesh, on_nodes: bool, width: int, data: st.DataObject) -> None:
    if on_nodes:
        mesh = mesh.with_nodes(ranks_per_node=data.draw(st.integers(1, 9)), tp_crossing="allow")
    rank = data.draw(st.none() | st.sampled_from(list(mesh.ranks)))
    try:
        picture = mesh.describe(rank, width=width)
    except ValueError as error:
        [said] = re.findall(rf"^width={width} is too narrow for this mesh; use (\d+)$", str(error))
        width = int(said)
        picture = mesh.describe(rank, width=width)
    assert max(map(len, picture.splitlines())) <= width


@pytest.mark.parametrize("width", [110, 80, 60, 40])
def test_a_large_mesh_is_folded_to_the_width(width: int) -> None:
    mesh = DeviceMesh.from_sizes(pp_size=2, dp_size=64, tp_size=64).with_nodes(ranks_per_node=8, tp_crossing="allow")
    picture = mesh.describe(4000, width=width)
    assert width - 20 <= max(map(len, picture.splitlines())) <= width
    assert "[4000]" in picture


@pytest.mark.parametrize("width", [0, 40.0, True])
def test_a_width_is_a_whole_number(width: int) -> None:
    with pytest.raises(ValueError, match=f"width={width}"):
        DeviceMesh.from_sizes(dp_size=2).describe(width=width)


def test_rich_draws_the_same_text_in_colour() -> None:
    picture = DeviceMesh.from_sizes(dp_size=2, tp_size=2).with_nodes(2).describe(3)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(picture)
    text = console.export_text(clear=False)
    assert [line.rstrip() for line in text.rstrip().splitlines()] == [
        line.rstrip() for line in picture.rstrip().splitlines()
    ]
    ansi = console.export_text(styles=True)
    assert "\x1b[1;7;33m[3]" in ansi
    assert "\x1b[36m 0 " in ansi


def test_the_svg_marks_nodes_and_the_rank() -> None:
    svg = DeviceMesh.from_sizes(dp_size=2, tp_size=2).with_nodes(2).svg(3)
    root = ElementTree.fromstring(svg)
    namespace = "{http://www.w3.org/2000/svg}"
    cells = [r for r in root.iter(f"{namespace}rect") if r.get("rx")]
    assert len({cell.get("fill") for cell in cells}) == 2
    assert [cell.get("stroke-width") for cell in cells] == ["1", "2", "2", "3"]
    texts = [element.text for element in root.iter(f"{namespace}text")]
    assert "node 1" in texts
    assert "[3]  dp=1 tp=1  data rank 1 of 2  node 1" in texts


def test_a_notebook_shows_the_svg() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    assert mesh._repr_svg_() == mesh.svg()


def test_a_large_svg_is_folded() -> None:
    mesh = DeviceMesh.from_sizes(world_size=8192, pp_size=16, tp_size=8).with_nodes([3000, 5192], tp_crossing="allow")
    svg = mesh.svg(100)
    assert len(svg) < 100_000
    texts = [element.text for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("...") >= 2
    assert "pp=0" in texts
    assert "·" in texts


def test_a_rank_outside_cannot_be_highlighted() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    for draw in (mesh.describe, mesh.svg):
        with pytest.raises(ValueError, match="rank=2"):
            draw(2)
