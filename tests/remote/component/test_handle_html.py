"""A handle in a notebook: its place, its remote functions and its mesh."""

from __future__ import annotations

from IPython.core.formatters import DisplayFormatter

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import on, remote_class, remote_function, session


def first(results: list[int], mesh: DeviceMesh | None) -> int:
    return results[0]


@remote_class()
class Actor:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def double(self, rows: list[int]) -> list[int]:
        return rows * 2

    @remote_function(dispatch="all", collect=first)
    def rank(self) -> int:
        return 0


def shown(value: object) -> str:
    return str(DisplayFormatter().format(value)[0]["text/html"])  # type: ignore[no-untyped-call]  # IPython's own gap


def test_a_handle_shows_its_functions_and_its_mesh() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2, tp_size=2)
    with session("threads", groups=[DeviceGroup("four", 4, "CPU")]):
        html = shown(on("four", mesh).create(Actor))
        plain = shown(on("four").create(Actor))
    assert "Actor on four, 4 workers" in html
    for name, dispatch, collect in (("double", "slice_dp", "flatten"), ("rank", "all", "first")):
        assert f"<td><code>{name}</code></td><td><code>{dispatch}</code></td><td><code>{collect}</code></td>" in html
    assert mesh.svg() in html
    assert "<svg" not in plain
