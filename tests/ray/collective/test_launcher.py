"""`MeshCollective.from_env` in processes that torchrun has launched, and without them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from twinkle_ray.collective import MeshCollective

if TYPE_CHECKING:
    from pathlib import Path

LAUNCHED = """
    import os
    import torch
    from twinkle_ray.collective import MeshCollective

    with MeshCollective.from_env(tp_size=2, device_type="cpu", timeout=60.0) as whole:
        total = torch.ones(1)
        whole.all_reduce(total)
        local = whole.local.all_gather_objects(whole.rank)
        told = whole.rank, whole.world_size, whole.local_rank, whole.tp_rank, whole.dp_rank, total.item(), local
    os.write(1, f"{told}\\n".encode())  # at once: the processes share the pipe
"""


@pytest.mark.processes
def test_two_nodes_of_two_processes_each(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LAUNCHED))
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with socket.create_server(("127.0.0.1", 0)) as probe:
        meet[-1] = f"127.0.0.1:{probe.getsockname()[1]}"
    agents = [
        subprocess.Popen(
            [*run, *meet, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(2)
    ]
    printed = ""
    try:
        for agent in agents:
            out, err = agent.communicate(timeout=300)
            assert agent.returncode == 0, err
            printed += out
    finally:
        for agent in agents:
            agent.kill()
    found = sorted(line for line in printed.splitlines() if line.startswith("("))
    assert found == [
        str((rank, 4, rank % 2, rank % 2, rank // 2, 4.0, [rank // 2 * 2, rank // 2 * 2 + 1])) for rank in range(4)
    ]


def test_what_the_environment_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANK", "0")
    message = "the environment lacks WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, which torchrun"
    with pytest.raises(ValueError, match=message):
        MeshCollective.from_env()
