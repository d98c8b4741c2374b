"""What a small worker loads: a law of modules, because every worker pays for each of them at its start."""

from __future__ import annotations

import pytest

from twinkle_remote import on, remote_class, remote_function

pytestmark = pytest.mark.usefixtures("ray_session")

START = {
    "twinkle_mesh": """
        context rules rules.checks rules.messages rules.rule_error
    """,
    "twinkle_ray": """
        cluster cluster.places cluster.raylet forkserver forkserver.forked objects objects.arrays
        objects.arrow objects.chunks objects.dataset_rows objects.object_store objects.pickling objects.tensors
        objects.time_limit objects.wire telemetry telemetry.whole_lines telemetry.worker_output
        workers workers.groups_here workers.loop_calls workers.rank_actor workers.stack_dump
    """,
    "twinkle_remote": """
        backends backends.support call call.alive_lazies component component.construct component.constructor
        component.method context errors protocol protocol.backend protocol.component
        protocol.defaults protocol.failure protocol.marks protocol.messages protocol.spec sessions
        sessions.current sessions.forked values values.columns values.registered_splitters values.rows
        values.tree worker worker.failure_saver worker.inputs worker.loop_tasks worker.open_generators
        worker.running worker.seeding worker.worker
    """,
}
"""The modules of each package that it may load, beside the package itself."""


def test_a_small_worker_loads_what_its_calls_need_and_no_more() -> None:
    @remote_class()
    class Small:
        @remote_function(dispatch="all", collect="first")
        def modules(self) -> list[str]:
            import sys

            return [name for name in sys.modules if name.startswith(("twinkle", "numpy.random", "torch"))]

    may = {f"{package}.{name}" for package, names in START.items() for name in names.split()}
    found = set(on("two").create(Small).modules())
    assert found <= may | START.keys(), f"loaded beside the rest: {sorted(found - may - START.keys())}"
    assert may <= found, f"not loaded any more, and to be taken from the list: {sorted(may - found)}"
