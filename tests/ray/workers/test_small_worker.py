"""What a small worker loads: a law of modules, because every worker pays for each of them at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ray.conftest import Program

START = {
    "twinkle_mesh": """
        lazy_names rank
    """,
    "twinkle_ray": """
        objects
        objects.chunks objects.object_store objects.pickling
        copy_threads objects.segments objects.tensors
        objects.wire ray_internals
        workers workers.core workers.loop_calls workers.rank_actor workers.task_queue
    """,
    "twinkle_remote": """
        backends backends.support component component.construct component.method context errors
        failures failures.report failures.travel protocol protocol.backend protocol.messages protocol.spec
        sessions sessions.pending_calls sessions.seeding sessions.session sessions.telemetry sessions.weights
        rows rows.columns rows.concat rows.cut rows.libraries rows.records rows.reduce rows.row_types rows.unknown
        worker worker.event_loop worker.replay worker.worker
    """,
}
"""The modules of each package that it may load, beside the package itself."""

PROGRAM = """
    import sys
    from program_tools import report
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import remote_class, remote_function, session

    @remote_class()
    class Small:
        @remote_function(dispatch="all", collect="first")
        def modules(self):
            return [name for name in sys.modules if name.startswith(("twinkle", "torch"))]

    with session("ray", groups=[DeviceGroup("two", 2, "CPU")], lazy_collect=False):
        report("modules ", Small(remote_group="two").modules)
"""


def test_a_small_worker_loads_what_its_calls_need_and_no_more(joined_program: Callable[..., Program]) -> None:
    """The driver is a program of its own: what a driver loads or registers, its workers have too."""
    may = {f"{package}.{name}" for package, names in START.items() for name in names.split()}
    started = joined_program(PROGRAM)
    found = set(started.report("modules ", 60)["value"])
    started.finish(30)
    assert found <= may | START.keys(), f"loaded beside the rest: {sorted(found - may - START.keys())}"
    assert may <= found, f"not loaded any more, and to be taken from the list: {sorted(may - found)}"
