"""A lazy result in a notebook: it tells its state, and showing it neither waits nor fetches."""

from __future__ import annotations

import threading

from IPython.core.formatters import DisplayFormatter

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import Lazy, get, on, remote_class, remote_function, session, submit

gate = threading.Event()


@remote_class()
class Slow:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def work(self, rows: list[str]) -> list[str]:
        assert gate.wait(60.0)
        return rows


def shown(value: object) -> dict[str, str]:
    data: dict[str, str] = DisplayFormatter().format(value)[0]  # type: ignore[no-untyped-call]  # IPython's own gap
    return data


def test_showing_never_waits_and_never_fetches() -> None:
    gate.clear()
    with session("threads", groups=[DeviceGroup("two", 2, "CPU")]):
        lazy: Lazy[list[str]] = submit(on("two", DeviceMesh.from_sizes(dp_size=2)).create(Slow).work, ["<a>", "b"])
        pending = shown(lazy)
        assert not lazy.done()
        gate.set()
        lazy.wait()
        done = shown(lazy)
        assert get(lazy) == ["<a>", "b"]
        fetched = shown(lazy)
    assert "0 of 2 workers done" in pending["text/html"] and "Slow.work on two[2] dp=2" in pending["text/html"]
    assert "0 of 2 workers done" in pending["text/plain"]
    assert "<td>done</td>" in done["text/html"] and "get(x)" in done["text/html"]
    assert "[&#x27;&lt;a&gt;&#x27;, &#x27;b&#x27;]" in fetched["text/html"]
