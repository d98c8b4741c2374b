"""What a small worker loads: a law of modules, because every worker pays for each of them at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.ray.conftest import Program

START = {
    "twinkle_mesh": """
        context launch lazy_names rules rules.checks rules.messages rules.rule_error
    """,
    "twinkle_ray": """
        cluster cluster.places cluster.raylet forkserver forkserver.forked objects
        objects.arrow objects.chunks objects.dataset_rows objects.object_store objects.pickling
        objects.shared_memory objects.shared_memory.placed objects.shared_memory.segment_ref objects.tensors
        objects.time_limit objects.wire ray_internals replies replies.withdrawn telemetry telemetry.whole_lines
        workers workers.loop_calls workers.rank_actor workers.shown_waits
        workers.stack_dump workers.worker_backend
    """,
    "twinkle_remote": """
        backends backends.support call call.lazy_values call.lazy_values.alive_lazies component component.construct
        component.constructor component.decorated component.method context errors failures failures.bare failures.ends
        failures.reraise
        protocol protocol.backend protocol.component protocol.defaults protocol.failure protocol.marks protocol.messages
        protocol.spec protocol.targets protocol.waiting running sessions sessions.current sessions.forked
        sessions.collector sessions.seeding sessions.signals sessions.signals.flag values
        values.attributes values.columns values.costs values.left_out values.rows
        values.sequences values.unknown worker worker.failure_saver worker.inputs
        worker.loop_tasks worker.open_generators worker.thread_state worker.waiting_tasks worker.worker
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
            return [name for name in sys.modules if name.startswith(("twinkle", "numpy.random", "torch"))]

    with session("ray", groups=[DeviceGroup("two", 2, "CPU")], lazy_collect=False):
        report("modules ", Small(remote_group="two").modules)
"""


def test_a_small_worker_loads_what_its_calls_need_and_no_more(program: Callable[..., Program]) -> None:
    """The driver is a program with a cluster of its own: what a driver loads or registers, its workers have too."""
    may = {f"{package}.{name}" for package, names in START.items() for name in names.split()}
    started = program(PROGRAM)
    found = set(started.report("modules ", 60)["value"])
    started.finish(30)
    assert found <= may | START.keys(), f"loaded beside the rest: {sorted(found - may - START.keys())}"
    assert may <= found, f"not loaded any more, and to be taken from the list: {sorted(may - found)}"
