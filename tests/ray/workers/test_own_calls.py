"""The defaults of a session in the calls that workers make; the end of such calls is in test_limits.py."""

from __future__ import annotations

import pytest

import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup
from twinkle_ray import restart
from twinkle_remote import remote_class, remote_function
from twinkle_remote.sessions.session import running

pytestmark = pytest.mark.ray


@remote_class()
class Inner:
    """Tells what the session on its worker is like."""

    @remote_function(dispatch="all", collect="first")
    def defaults(self) -> tuple[bool, int]:
        runtime = running()
        return runtime.defaults.lazy_collect, runtime.defaults.max_in_flight

    @remote_function(dispatch="all", collect="first", lazy_collect=False)
    def calls(self, other: Inner) -> str:
        return type(other.defaults()).__name__


@pytest.mark.usefixtures("ray_cluster")
def test_defaults_of_the_session_reach_its_workers_also_after_a_restart() -> None:
    groups = [DeviceGroup("a", 2, "CPU"), DeviceGroup("b", 1, "CPU")]
    with twinkle.session("ray", groups=groups, lazy_collect=False, max_in_flight=7, restart="group"):
        inner, other = twinkle.on("a").create(Inner), twinkle.on("b").create(Inner)
        assert (inner.defaults(), other.defaults()) == ((False, 7), (False, 7))
        assert inner.calls(other) == "tuple"
        restart("a")
        assert (inner.defaults(), other.defaults()) == ((False, 7), (False, 7))
        assert inner.calls(other) == other.calls(inner) == "tuple"
