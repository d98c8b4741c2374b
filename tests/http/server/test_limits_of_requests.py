"""Options that are out of bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session

if TYPE_CHECKING:
    from collections.abc import Iterator


@remote_class()
class Served:
    @remote_function(dispatch="all", collect="first")
    def ping(self) -> str:
        return "here"


@pytest.fixture
def running() -> Iterator[None]:
    with session("threads", groups=[DeviceGroup("g", 1, "CPU")]):
        yield


@pytest.mark.usefixtures("running")
@pytest.mark.parametrize("port", [-1, 65536, 99999999, "8765", 1.0, True])
def test_a_port_is_in_its_range(port: Any) -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        serve([Served], port=port)
