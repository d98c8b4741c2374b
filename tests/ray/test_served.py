"""A Ray session over HTTP: some checks of the public suite, by a client in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.subjects.served import VALUE_TYPES, served_classes

from twinkle_mesh import DeviceGroup
from twinkle_remote import current_worker, register_type, remote_class, remote_function, serve, session

TOKEN = "a token for tests"


@remote_class()
class Printer:
    @remote_function(dispatch="all", collect="first")
    def says(self, text: str) -> None:
        print(text, flush=True)

    @remote_function(dispatch="all", collect="first")
    def rests(self) -> None:
        time.sleep(0.5)

    @remote_function(dispatch="all", collect="first")
    def dies(self, rank: int) -> None:
        if current_worker().rank == rank:
            os._exit(3)

    @remote_function(dispatch="slice_dp", collect="flatten")
    def lengths(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @remote_function(dispatch="all", collect="first")
    def fails(self) -> None:
        raise KeyError("no such thing")


SIZES = (4, 2, 1)
CLIENT = """
    import sys
    import time
    from twinkle_remote import get, on, register_type, session, stats
    from twinkle_remote import remote_class, remote_function
    from tests.conformance import Harness
    from tests.conformance.checks import collecting, failing, handing, objects, streaming
    from tests.conformance.subjects.echo import Echo
    from tests.conformance.subjects.served import VALUE_TYPES
    from twinkle_remote.errors import WorkerDiedError

    @remote_class()
    class Printer:
        @remote_function(dispatch="all", collect="first")
        def says(self, text: str) -> None: ...

        @remote_function(dispatch="all", collect="first")
        def rests(self) -> None: ...

        @remote_function(dispatch="all", collect="first")
        def dies(self, rank: int) -> None: ...

    class Heard:  # standard output that keeps what is written to it
        text = ""
        flush = staticmethod(sys.stdout.flush)

        def write(self, text):
            self.text += text
            return sys.__stdout__.write(text)

    address, token, folder, *sizes = sys.argv[1:]
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
    sys.stdout = Heard()
    with session("http", address=address, token=token):
        harness = Harness("http", {int(size): f"of-{size}" for size in sizes}, folder, served=True, patience=3.0)
        for check in checks:
            check(harness)
            print("passed:", check.__name__, flush=True)
        printer = on("of-2").create(Printer)
        get(printer.says("hello"))
        told = stats()[-1]
        assert (told.method, told.group, told.workers) == ("Printer.says", "of-2", 1)
        began = time.monotonic()
        try:
            get(printer.dies(1))
        except WorkerDiedError as error:
            assert "of-2[1/2] died during Printer.dies" in str(error), error
        else:
            raise AssertionError("nobody died")
        assert time.monotonic() - began < 60.0
        assert get(on("of-4").create(Echo).rows([1, 2, 3])) == [1, 2, 3]
    assert "ray" not in sys.modules, "a client needs no Ray"
    print("all")
"""


@pytest.mark.ray
def test_a_client_needs_no_ray(ray_cluster: None, tmp_path: Path) -> None:
    for kind in VALUE_TYPES:
        register_type(kind)
    with (
        session("ray", groups=[DeviceGroup(f"of-{size}", size, "CPU") for size in SIZES]),
        serve([*served_classes(), Printer], port=0, token=TOKEN) as server,
    ):
        arguments = [server.address, TOKEN, str(tmp_path), *map(str, SIZES)]
        command = [sys.executable, "-c", textwrap.dedent(CLIENT), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.stdout.splitlines()[-1:] == ["all"], f"{done.stdout}{done.stderr}"


def post(address: str, path: str, body: Any = None, method: str = "POST") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{address}/v1/{path}", data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120.0) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def check_plain_json(address: str) -> None:
    """Build, call and release components of Ray's workers in plain JSON."""
    status, answer = post(address, "Printer", {"remote_group": "of-2", "device_mesh": {"dp_size": 2}})
    assert status == 201, answer
    path = f"Printer/{answer['id']}"
    assert post(address, f"{path}/lengths", {"texts": ["a", "bb", "ccc"]}) == (200, {"result": [1, 2, 3]})
    assert post(address, f"{path}/says", {"text": "hello"}) == (200, {"result": None})
    status, answer = post(address, f"{path}/fails", {})
    assert status == 500 and answer["error"]["type"] == "KeyError" and "Traceback" not in str(answer)
    assert post(address, f"{path}/lengths", {"texts": 3})[0] == 400
    status, answer = post(address, f"{path}/dies", {"rank": 1})
    assert (status, answer["error"]["type"]) == (500, "WorkerDiedError"), answer
    assert "of-2[1/2 dp=1] died during Printer.dies" in answer["error"]["message"]
    post(address, path, method="DELETE")
    assert post(address, f"{path}/lengths", {"texts": ["a"]})[0] == 404


@pytest.mark.ray
def test_the_command_serves_workers_of_a_cluster_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "printers.py").write_text(Path(__file__).read_text())
    options = ["--mode", "ray", "--group", "of-2=2xCPU", "--port", "0"]
    command = [sys.executable, "-m", "twinkle", "serve", "printers:Printer", *options]
    paths = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])  # this module imports others of the tests
    environment = {**os.environ, "TWINKLE_TOKEN": TOKEN, "PYTHONPATH": paths}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        limit = threading.Timer(200.0, process.kill)
        limit.start()
        try:
            assert process.stdout is not None
            address = next((line.strip() for line in process.stdout if line.startswith("http://")), "")
            assert address, "it ended without its address"
            check_plain_json(address)
            process.terminate()
            assert process.wait(100) == 0
        finally:
            limit.cancel()
            process.kill()
