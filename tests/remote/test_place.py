"""Who the running code is: workers, their helper threads, process groups, launchers."""

from __future__ import annotations

import asyncio
import contextvars
import json
import socket
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_mesh import DeviceGroup, DeviceMesh, current_rank, launched, use_rank
from twinkle_remote import (
    current_place,
    current_worker,
    get,
    on,
    remote_class,
    remote_function,
    session,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def in_thread(ask: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(ask).result()


def in_thread_with_context(ask: Callable[[], Any]) -> Any:
    here = contextvars.copy_context()
    return in_thread(lambda: here.run(ask))


def in_to_thread(ask: Callable[[], Any]) -> Any:
    return asyncio.run(asyncio.to_thread(ask))


def ranks() -> Any:
    return current_worker().rank, current_place().rank, current_rank()


@remote_class()
class Asker:
    @remote_function(dispatch="all", collect="none")
    def ask(self, how: Any) -> Any:
        return how(ranks)

    @remote_function(dispatch="all", collect="none")
    def alone(self) -> bool:
        return current_place().alone

    @remote_function(execute="first")
    def first_alone(self) -> bool:
        return current_place().alone


@remote_class(execute="first")
class Single:
    @remote_function()
    def alone(self) -> bool:
        return current_place().alone


def test_a_worker_and_its_threads_know_its_rank_if_they_have_its_context() -> None:
    with session("threads", groups=[DeviceGroup("some", 3, "CPU")]):
        asker = on("some").create(Asker)
        right = [(rank,) * 3 for rank in range(3)]
        for how in (lambda ask: ask(), in_thread_with_context, in_to_thread):
            assert asker.ask(how) == right
        assert asker.ask(in_thread) == [(None, 0, None)] * 3
        assert ranks() == (None, 0, None)
        assert in_thread(ranks) == (None, 0, None)
        assert in_to_thread(ranks) == (None, 0, None)
        assert asker.alone() == [False] * 3
        assert asker.first_alone()
        assert on("some").create(Single).alone()
    assert in_thread(ranks) == (None, 0, None)


def test_a_driver_may_be_another_thread_than_the_main_one() -> None:
    def program() -> Any:
        with session("threads", groups=[DeviceGroup("some", 2, "CPU")]):
            return get(on("some").create(Asker).ask(in_to_thread)), ranks()

    assert in_thread(program) == ([(0, 0, 0), (1, 1, 1)], (None, 0, None))


def test_variables_of_a_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    assert launched() is None
    assert current_place().alone
    monkeypatch.setenv("RANK", "1")
    assert (current_place().rank, current_place().world_size) == (1, None)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert current_place()[:2] == (1, 4)
    assert in_thread(current_place)[:2] == (1, 4)
    with use_rank(3):
        assert current_place()[:2] == (3, None)


@pytest.mark.parametrize(
    ("rank", "size", "word"),
    [
        ("0", "x", "WORLD_SIZE='x'"),
        ("0", "0", "WORLD_SIZE='0'"),
        ("-1", "2", "RANK='-1'"),
        ("2", "2", "RANK=2"),
        (None, "2", "RANK is not"),
        ("1.0", None, "RANK='1.0'"),
    ],
)
def test_variables_that_say_nothing_are_refused(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, size: str | None, word: str
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    for ask in (current_place, launched, lambda: DeviceMesh.from_sizes(dp_size=2).get_slice(8)):
        with pytest.raises(ValueError, match=word):
            ask()
    with pytest.raises(ValueError, match=word), session("local"):
        pass


PROGRAM = """
    import json
    import os
    import sys

    import torch.distributed as dist

    from twinkle_mesh import DeviceGroup, DeviceMesh
    from twinkle_remote import BackendError, current_place, current_worker, on, remote_class, remote_function, session

    rank, port = int(sys.argv[1]), sys.argv[2]


    @remote_class()
    class Rows:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def rows(self, rows):
            return [(row, current_worker().rank) for row in rows]


    def begin():
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


    told = {"before": current_place()[:2]}
    mesh = DeviceMesh.from_sizes(dp_size=2)
    with session("local", groups=[DeviceGroup("both", 2, "CPU")]):
        begin()
        try:
            told["late"] = on("both", mesh).create(Rows).rows([1, 2, 3])
        except BackendError:
            told["late"] = "refused"
    told["group"] = current_place()[:2]
    told["slice"] = str(mesh.get_slice(8))
    with session("local", groups=[DeviceGroup("both", 2, "CPU")]):
        told["rows"] = on("both", mesh).create(Rows).rows([1, 2, 3])
    os.environ["RANK"] = str(1 - rank)
    for name, ask in {"place": current_place, "mesh": mesh.data_rank}.items():
        try:
            told[name] = str(ask())
        except ValueError:
            told[name] = "refused"
    print(json.dumps(told))
    dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_process_group_without_variables(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, str(program)]
    started = [subprocess.Popen([*command, str(rank), port], stdout=subprocess.PIPE, text=True) for rank in range(2)]
    for rank, process in enumerate(started):
        told = json.loads(process.communicate(timeout=120)[0])
        assert told["before"] == [0, 1]
        assert told["late"] == "refused"
        assert told["group"] == [rank, 2]
        assert told["slice"] == str(slice(4 * rank, 4 * rank + 4))
        assert told["rows"] == [[1, 0], [2, 0], [3, 1]]
        assert told["place"] == told["mesh"] == "refused"
