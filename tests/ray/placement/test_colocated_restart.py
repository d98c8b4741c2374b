"""A restarted group of a `colocate` set stays on the nodes of its set, or the error says what would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.ray, pytest.mark.long]

PROGRAM = """
    import ray
    import twinkle_remote as twinkle
    from program_tools import report, start_cluster
    from twinkle_mesh import DeviceGroup
    from twinkle_ray import restart

    @twinkle.remote_class()
    class Part:
        @twinkle.remote_function(dispatch="all", collect="none")
        def node(self):
            return ray.get_runtime_context().get_node_id()

    if __name__ == "__main__":
        cluster = start_cluster(num_cpus=1)
        rooms = [cluster.add_node(num_cpus=1, resources={"room": 3}) for _ in range(2)]
        ray.init(address=cluster.address, logging_level="ERROR")
        groups = [DeviceGroup(name, 2, "room") for name in ("actor", "sampler")]
        twinkle.initialize("ray", groups=groups, colocate=[("actor", "sampler")], restart="group", lazy_collect=False)
        actor, sampler = (Part(remote_group=group.name) for group in groups)
        before = [actor.node(), sampler.node()]
        restart("actor")
        report("KEPT", lambda: [before, [actor.node(), sampler.node()]])
        cluster.remove_node(rooms[0])
        report("LOST", lambda: restart("actor"))
        twinkle.shutdown(0)
        ray.shutdown()
        cluster.shutdown()
"""


@pytest.fixture(scope="module")
def told(programs: Callable[..., Any]) -> dict[str, Any]:
    """What the program reported, by name."""
    running = programs(PROGRAM)
    out = {name: running.report(name, 150) for name in ("KEPT", "LOST")}
    running.finish(90)
    return out


def test_it_keeps_its_nodes_where_one_node_has_room_for_all_of_it(told: dict[str, Any]) -> None:
    before, after = told["KEPT"]["value"]
    assert before == after and before[0] == before[1] and len(set(before[0])) == 2


def test_a_lost_node_is_an_error_that_says_what_would_do(told: dict[str, Any]) -> None:
    assert told["LOST"]["kind"] == "PlacementError", told["LOST"]
    text = told["LOST"]["text"]
    assert text.startswith(
        "group 'actor' cannot be restarted alone: colocate places it on the nodes of 'sampler', and "
    )
    assert text.endswith("is lost; shutdown() and initialize() place them together anew")
