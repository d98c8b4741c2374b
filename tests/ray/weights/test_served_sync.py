"""A weight sync between components of a served session, called by a client in another process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = """
    import sys
    import torch
    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_ray import WeightSync, WeightSyncError
    from twinkle_remote import get, on, remote_class, remote_function, serve, session, stream
    from twinkle_remote.errors import DispatchError

    @remote_class()
    class Model:
        def __init__(self, width: int = 4) -> None:
            self.weight = torch.zeros(width)
            self.versions = []

        def weights(self) -> dict[str, torch.Tensor]:
            return {"weight": self.weight}

        def on_weights(self, version: int) -> None:
            self.versions.append(version)

        @remote_function(dispatch="slice_dp", collect="flatten")
        def sample(self, rows: list[int]) -> list[tuple[int, float]]:
            return [(row, float(self.weight[0])) for row in rows]

        @remote_function(dispatch="all", collect="first")
        def update(self) -> None:
            self.weight += 1.0

        @remote_function(dispatch="all")
        def seen(self) -> list[int]:
            return self.versions

    @remote_class()
    class Agent:
        def __init__(self, sampler: Model) -> None:
            self.sampler = sampler

        @remote_function(dispatch="slice_dp", collect="flatten")
        def play(self, rows: list[int]) -> list[tuple[int, float]]:
            return [found for row in rows for found in get(self.sampler.sample([row]))]

    TOKEN = "a token for tests"
    if sys.argv[1] == "serve":
        groups = [DeviceGroup("sampler", 2, "CPU"), DeviceGroup("actor", 1, "CPU"), DeviceGroup("more", 1, "CPU")]
        with session("threads", groups=groups), serve([Model, Agent], port=0, token=TOKEN) as server:
            print(server.address, flush=True)
            sys.stdin.read()
        sys.exit()

    with session("http", address=sys.argv[1], token=TOKEN):
        sampler = on("sampler", DeviceMesh.from_sizes(dp_size=2)).create(Model)
        actor, wide = on("actor").create(Model), on("actor").create(Model, 5)
        sync = WeightSync(actor, sampler)
        assert sync.delivery is None
        source = [list(range(at, at + 4)) for at in range(0, 40, 4)]
        with stream(source, sampler.sample, rows=4, ahead=12, order="arrival", max_lag=1) as batches:
            for number, batch in enumerate(batches, 1):
                info = batches.info
                for (row, weight), index, begun in zip(get(batch), info.indices, info.begun, strict=True):
                    assert row == index and begun <= weight
                get(actor.update())
                assert sync() == batches.version == number
            assert batches.stats().worst_lag <= 1
        delivery = sync.delivery
        assert (delivery.version, delivery.moved) == (10, 16), delivery
        assert WeightSync(actor, sampler, check="always")() == 1
        get(actor.update())
        under_way = sync.start()
        get(actor.update())
        assert under_way.result() == 11
        assert {weight for _, weight in get(sampler.sample([0, 1, 2, 3]))} == {11.0}
        assert get(sampler.seen()) == [[*range(1, 11), 1, 11]] * 2
        for call, kind, text in (
            (WeightSync(wide, sampler), WeightSyncError, "weight"),
            (lambda: WeightSync(actor, sampler, rename=lambda name: name), DispatchError, "function"),
            (lambda: WeightSync(actor, [1, 2]), TypeError, "components of the server, got list"),
        ):
            try:
                call()
            except kind as error:
                assert text in str(error), error
            else:
                raise AssertionError(text)
        sync.close()
        assert sync() == 12
        agent = on("more").create(Agent, sampler)
        for ahead in (0, 4):
            first = sync.version
            with stream(source, agent.play, ahead=ahead, max_lag=1, weights_of=sampler) as batches:
                for number, batch in enumerate(batches, 1):
                    assert min(batches.info.begun) >= first and len(get(batch)) == 4
                    assert sync() == batches.version == first + number
                assert batches.stats().worst_lag == (1 if ahead else 0)
    print("all")
"""


@contextmanager
def served(program: Path, *arguments: str) -> Iterator[str]:
    """The address of a server that a program runs until the block ends."""
    command = [sys.executable, str(program), "serve", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        limit = threading.Timer(60.0, server.kill)
        limit.start()
        try:
            address = server.stdout.readline().strip()
            limit.cancel()
            yield address
            server.stdin.close()
            assert server.wait(60) == 0
        finally:
            limit.cancel()
            server.kill()


def check(program: Path, *arguments: str) -> None:
    """Run a client."""
    command = [sys.executable, str(program), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "all\n", done.stdout + done.stderr


def test_weights_move_at_the_server(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(SOURCE))
    with served(program) as address:
        check(program, address)
