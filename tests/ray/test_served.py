"""`twinkle serve` over Ray: some checks of the public suite by a client in another process, and plain JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.subjects.served import served_classes

TOKEN = "a token for tests"
SERVED = """
    import os
    from tests.conformance.subjects.served import VALUE_TYPES
    from twinkle_remote import current_worker, register_type, remote_class, remote_function

    for kind in VALUE_TYPES:
        register_type(kind)

    @remote_class()
    class Mortal:
        @remote_function(dispatch="all", collect="first")
        def dies(self, rank: int) -> None:
            if current_worker().rank == rank:
                os._exit(3)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def lengths(self, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]
"""
CLIENT = """
    import sys
    import time
    from twinkle_remote import get, on, register_type, remote_class, remote_function, session
    from tests.conformance import Harness
    from tests.conformance.checks import collecting, failing, handing, objects, streaming
    from tests.conformance.subjects.echo import Echo
    from tests.conformance.subjects.served import VALUE_TYPES
    from twinkle_remote.errors import WorkerDiedError

    @remote_class()
    class Mortal:
        @remote_function(dispatch="all", collect="first")
        def dies(self, rank: int) -> None: ...

    address, token, folder = sys.argv[1:]
    for kind in VALUE_TYPES:
        register_type(kind)
    checks = (
        handing.lazy_collect_and_sync_say_when,
        collecting.later_writes_do_not_change_results,
        failing.failures_are_of_the_type_that_was_raised,
        failing.deadlines_name_the_ranks_that_are_late,
        handing.results_move_from_worker_to_worker,
        streaming.streaming_goes_through_stages_one_after_the_other,
        streaming.streaming_moves_no_rows_through_the_driver,
    )
    with session("http", address=address, token=token):
        harness = Harness("http", {size: f"of-{size}" for size in (4, 2, 1)}, folder, served=True, patience=3.0)
        for check in checks:
            check(harness)
            print("passed:", check.__name__, flush=True)
        mortal = on("of-2").create(Mortal)
        began = time.monotonic()
        try:
            get(mortal.dies(1))
        except WorkerDiedError as error:
            assert "of-2[1/2] died during Mortal.dies" in str(error), error
        else:
            raise AssertionError("nobody died")
        assert time.monotonic() - began < 60.0
        assert get(on("of-4").create(Echo).rows([1, 2, 3])) == [1, 2, 3]
    assert "ray" not in sys.modules, "a client needs no Ray"
    print("all")
"""


def post(address: str, path: str, body: Any) -> Any:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    request = urllib.request.Request(f"{address}/v1/{path}", json.dumps(body).encode(), headers, method="POST")
    with urllib.request.urlopen(request, timeout=120.0) as answer:
        return json.loads(answer.read())


def check_plain_json(address: str) -> None:
    """A component of Ray's workers in plain JSON."""
    made = post(address, "Mortal", {"remote_group": "of-2", "device_mesh": {"dp_size": 2}})
    assert post(address, f"Mortal/{made['id']}/lengths", {"texts": ["a", "bb", "ccc"]}) == {"result": [1, 2, 3]}


def check_client(address: str, folder: Path) -> None:
    """A program of its own, which needs no Ray."""
    command = [sys.executable, "-c", textwrap.dedent(CLIENT), address, TOKEN, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.splitlines()[-1:] == ["all"], f"{done.stdout}{done.stderr}"


@pytest.mark.ray
def test_the_command_serves_workers_of_a_cluster_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mortals.py").write_text(textwrap.dedent(SERVED))
    classes = ["mortals:Mortal", *(f"{cls.__module__}:{cls.__name__}" for cls in served_classes())]
    groups = [f"--group=of-{size}={size}xCPU" for size in (4, 2, 1)]
    command = [sys.executable, "-m", "twinkle", "serve", *classes, "--mode", "ray", *groups, "--port", "0"]
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])  # the suite is a package of the tests
    environment = {**os.environ, "TWINKLE_TOKEN": TOKEN, "PYTHONPATH": paths}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(400.0, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            address = next((line.strip() for line in process.stdout if line.startswith("http://")), "")
            assert address, "it ended without its address"
            check_plain_json(address)
            check_client(address, tmp_path)
            process.terminate()
            assert process.wait(100) == 0
        finally:
            limit.cancel()
            process.kill()
