"""Processes of one program that two launchers have started again, each with a count of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.processes

PROGRAM = """
    import os

    from twinkle_mesh import DeviceMesh
    from twinkle_remote import remote_class, remote_function, session

    @remote_class()
    class Part:
        def __init__(self, device_mesh=None):
            self.mesh = device_mesh

        @remote_function(dispatch="slice_dp", collect="flatten", timeout=20)
        def rows(self, rows):
            return [(row, os.environ["RANK"]) for row in rows]

    with session("local"):
        print(Part(remote_group="part", device_mesh=DeviceMesh.from_sizes(dp_size=2)).rows([7, 8]))
"""


@pytest.mark.slow
def test_a_store_of_one_attempt_serves_launchers_that_count_restarts_differently() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = []
    for rank in range(2):
        own = {**common, "RANK": str(rank), "LOCAL_RANK": "0", "TORCHELASTIC_RESTART_COUNT": str(rank)}
        own["TORCHELASTIC_USE_AGENT_STORE"] = "False"
        command = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, env={**os.environ, **own}, stdout=pipe, stderr=pipe, text=True))
    told = [process.communicate(timeout=120) for process in started]
    assert [out for out, _ in told] == ["[(7, '0'), (8, '1')]\n"] * 2, told
