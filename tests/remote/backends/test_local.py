"""The local backend under torchrun: two processes of one program, each a rank of every component."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import json
    import os
    import random
    import signal
    import sys
    import threading
    import time
    from pathlib import Path

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote import CallTimeoutError, PlacementError, current_worker
    from twinkle_remote import get, remote_class, remote_function, session, stream, submit

    RANK = int(os.environ["RANK"])
    TOLD = {}
    READ = []


    class Large:
        nbytes = 100_000

        def __init__(self, rank):
            self.rank = rank

        def __reduce__(self):
            return read_large, (self.rank, bytes(self.nbytes))

        def __deepcopy__(self, memo):
            return self


    def read_large(rank, data):
        READ.append(rank)
        return Large(rank)


    @remote_class()
    class Actor:
        def __init__(self, device_mesh=None):
            self.mesh = device_mesh
            self.built_as = current_worker().rank
            self.calls = 0
            self.drawn = random.random()

        @remote_function(dispatch="all", collect="none")
        def draws(self):
            return self.drawn

        @remote_function(dispatch="slice_dp", collect="flatten")
        def rows(self, rows):
            self.calls += 1
            return [(row, current_worker().rank) for row in rows]

        @remote_function(dispatch="slice_dp", collect="mean")
        def mean(self, rows):
            return sum(rows) / len(rows) if rows else float("nan")

        @remote_function(dispatch="all", collect="first")
        def fail(self, rank):
            if current_worker().rank == rank:
                raise KeyError(f"on {rank}")
            return rank

        @remote_function()
        def large(self):
            return Large(RANK)

        @remote_function(dispatch="all", timeout=0.5)
        def slow(self, rank, seconds):
            time.sleep(seconds if RANK == rank else 0.0)

        @remote_function(timeout=100.0)
        def soon(self):
            return RANK

        @remote_function(execute="first")
        def first(self):
            self.calls += 1
            return current_worker().rank

        @remote_function()
        def ranks(self):
            return current_worker().rank, self.calls, self.built_as


    @remote_class()
    class Plain:
        @remote_function()
        def where(self):
            return RANK


    def refused(build):
        try:
            return [str(build())]
        except PlacementError as error:
            return [str(error)]


    with session("local", groups=[DeviceGroup("actor", 2, "CPU")], seed=9):
        [random.random() for _ in range(RANK)]
        actor = Actor(remote_group="actor", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        copies = Actor(remote_group="actor", device_mesh=DeviceMesh.from_sizes(dp_size=1, tp_size=2))
        TOLD["drawn"] = [list(one.draws()) for one in (actor, copies)]
        TOLD["rows"] = actor.rows([1, 2, 3])
        TOLD["copies"] = copies.rows([1, 2, 3])
        TOLD["mean"] = actor.mean([1.0, 2.0, 6.0])
        TOLD["first"] = [actor.first() for _ in range(3)]
        TOLD["lazy"] = actor.rows(submit(copies.rows, [4, 5, 6])).copy()
        unread = submit(actor.rows, [7])
        if RANK == 1:
            unread.result()
        try:
            actor.fail(1)
        except KeyError as error:
            TOLD["error"] = str(error).splitlines()[0]
        TOLD["ranks"] = actor.ranks()
        unused, used = submit(actor.large), submit(actor.large)
        TOLD["many"] = sum(actor.mean([1.0, 2.0]) for _ in range(200))
        TOLD["large"] = [not READ, [one.rank for one in used.result()], READ == [1 - RANK]]
        for rank in range(2):
            actor.ranks()
            try:
                actor.slow(rank, 3.0)
            except CallTimeoutError as error:
                TOLD[f"late {rank}"] = str(error).partition(":")[0]
        TOLD["in time"] = actor.soon()
        TOLD["plain"] = Plain().where()
        if RANK == 1:
            TOLD["alone"] = Plain().where()
        TOLD["end"] = actor.rows([8, 9])
        TOLD["no mesh"] = Actor(remote_group="actor").rows([1, 2, 3])
        FOUR = DeviceMesh.from_sizes(dp_size=4)
        TOLD["too large"] = refused(lambda: Actor(remote_group="actor", device_mesh=FOUR))
        TOLD["too large"] += refused(lambda: Actor(device_mesh=FOUR))
    with session("local"):
        again = Actor(remote_group="any", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        TOLD["again"] = again.rows([1, 2])
        TOLD["stream"] = []
        source = [list(range(at, at + 6)) for at in (0, 6)]
        with stream(source, again.rows, rows=4, ahead=8, max_lag=1) as batches:
            for batch in batches:
                TOLD["stream"].append([get(batch), batches.info.begun, batches.publish()])
    Path(sys.argv[1], f"{RANK}.json").write_text(json.dumps(TOLD))


    @remote_class()
    class Waiting:
        @remote_function(dispatch="all", collect="none", lazy_collect=False)
        def wait_on_rank_1(self):
            until = time.monotonic() + 60
            while RANK == 1 and not SEEN.exists() and time.monotonic() < until:
                time.sleep(0.05)


    SEEN = Path(sys.argv[1], "seen")
    with session("local", groups=[DeviceGroup("actor", 2, "CPU")]):
        waiting = Waiting(remote_group="actor", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        if RANK == 0:
            threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT]).start()
        began = time.monotonic()
        try:
            waiting.wait_on_rank_1()
        except KeyboardInterrupt:
            SEEN.write_text(str(time.monotonic() - began))
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the program's two processes wrote, one run for all tests: a launcher and its processes take seconds."""
    folder = tmp_path_factory.mktemp("ran")
    path = folder / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*launch, str(path), str(folder)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_processes_of_one_program_go_on_with_the_same_values(ran: Path) -> None:
    told = [json.loads((ran / f"{rank}.json").read_text()) for rank in range(2)]
    one = dict(told[0])
    assert one.pop("plain") == 0 and told[1].pop("plain") == 1 and told[1].pop("alone") == 1
    assert one == told[1]
    assert one["drawn"] == [[random.Random(seed).random()] * 2 for seed in (9, 10)]
    loop = [[[row, 0], [row + 1, 0], [row + 2, 1], [row + 3, 1]] for row in (0, 4, 8)]
    assert one["stream"] == [[batch, [number] * 4, number + 1] for number, batch in enumerate(loop)]
    assert one["rows"] == [[1, 0], [2, 0], [3, 1]] and one["copies"] == [[1, 0], [2, 0], [3, 0]]
    assert one["mean"] == 3.0 and one["first"] == [0, 0, 0] and one["many"] == 300.0
    assert one["lazy"] == [[[4, 0], 0], [[5, 0], 0], [[6, 0], 1]]
    assert "Actor.fail failed on actor[1/2 dp=1]" in one["error"] and "on 1" in one["error"]
    assert one["large"] == [True, [0, 1], True]
    assert one["late 0"] == one["late 1"] == "Actor.slow is not done after 0.5 s" and one["in time"] == [0, 1]
    assert one["ranks"] == [[0, 6, 0], [1, 3, 1]]
    assert one["no mesh"] == [[1, 0], [2, 0], [3, 1]]
    assert len(one["too large"]) == 2 and all("device_mesh has 4 ranks" in text for text in one["too large"])
    assert one["end"] == [[8, 0], [9, 1]] and one["again"] == [[1, 0], [2, 1]]


@pytest.mark.slow
def test_an_interrupt_is_seen_by_a_process_that_waits_for_another(ran: Path) -> None:
    assert float((ran / "seen").read_text()) < 10
