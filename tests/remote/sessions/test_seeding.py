"""What a seed says of the generators of a process, whenever numpy and torch are loaded."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from twinkle_remote import session
from twinkle_remote.sessions.seeding import check_seed, seed_process, stop_seeding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

DRAWS = """
    import json, os, sys

    def draws():
        import random
        import numpy, torch
        return [random.random(), float(numpy.random.rand()), float(torch.rand(())), int(torch.initial_seed())]
"""

SESSION = (
    DRAWS
    + """
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Model:
        def __init__(self):
            self.drawn = draws()

        @twinkle.remote_function(dispatch="all")
        def told(self):
            return self.drawn

    assert not {"numpy", "torch"} & sys.modules.keys()
    with twinkle.session(sys.argv[1], groups=[DeviceGroup("actor", 1, "CPU")], seed=int(sys.argv[2])):
        told = twinkle.on("actor").create(Model).told()
        print(json.dumps(told() if isinstance(told, twinkle.Lazy) else told))
"""
)


def expected(seed: int) -> list[float]:
    """What generators give that the seed alone has set."""
    import random

    import torch

    here, there = random.Random(seed), np.random.RandomState(seed)
    return [
        here.random(),
        float(there.rand()),
        float(torch.rand((), generator=torch.Generator().manual_seed(seed))),
        seed,
    ]


def start(directory: Path, source: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    path = directory / "program.py"
    path.write_text(textwrap.dedent(source))
    return subprocess.Popen(
        [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
    )


def told(processes: Sequence[subprocess.Popen[str]]) -> list[Any]:
    out = []
    for process in processes:
        text, _ = process.communicate(timeout=240)
        assert process.returncode == 0
        out.append(json.loads(text))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["local", "threads"])
def test_numpy_and_torch_are_seeded_where_they_are_loaded_later(tmp_path: Path, mode: str) -> None:
    assert told([start(tmp_path, SESSION, mode, "7")]) == [expected(7)]


@pytest.mark.processes
def test_launched_processes_draw_alike(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    late = SESSION.replace(", seed=", ", exchange_timeout=120, seed=")
    late = late.replace('    assert not {"numpy", "torch"} & sys.modules.keys()\n', "")
    both = told([start(tmp_path, late, "local", "9", RANK=str(rank), **shared) for rank in range(2)])
    assert both == [[expected(9)] * 2] * 2


def test_after_the_session_modules_are_left_alone(tmp_path: Path) -> None:
    program = """
    import twinkle_remote as twinkle
    before = list(sys.meta_path)
    with twinkle.session("local", seed=3):
        pass
    assert sys.meta_path == before
    import numpy
    print(json.dumps(int(numpy.random.get_state()[1][0])))
    """
    assert told([start(tmp_path, DRAWS + program)]) != [3]


@pytest.mark.slow
def test_modules_that_are_loaded_later_have_the_latest_seed_and_are_themselves(tmp_path: Path) -> None:
    """One that could not be had stays so; the collector rests while torch is loaded; a later seed counts again."""
    program = """
    import gc, importlib.util
    from twinkle_remote.backends.support import seed_process
    hidden = sys.path[:]
    seed_process(1)
    seed_process(5)
    sys.path[:] = []
    try:
        import torch
    except ModuleNotFoundError as error:
        assert error.name == "torch"
    sys.path[:] = hidden
    importlib.invalidate_caches()
    runs = []
    gc.callbacks.append(lambda phase, info: runs.append(phase))
    import torch
    assert len(runs) < 20 and gc.isenabled(), "a few while it is looked for, hundreds otherwise"
    told = draws()
    import numpy
    assert type(numpy.__loader__) is type(json.__loader__) and numpy.__spec__.loader is numpy.__loader__
    assert importlib.util.find_spec("torch").loader.get_source("torch")
    seed_process(2)  # they are loaded and have drawn
    print(json.dumps([told, draws()]))
    """
    assert told([start(tmp_path, DRAWS + program)]) == [[expected(5), expected(2)]]


def test_threads_that_load_at_once_all_find_a_seeded_module(tmp_path: Path) -> None:
    program = """
    import threading
    from twinkle_remote.backends.support import seed_process
    seed_process(11)
    seen = []
    def load():
        import numpy
        seen.append(int(numpy.random.get_state()[1][0]))
    threads = [threading.Thread(target=load) for _ in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(json.dumps(seen))
    """
    assert told([start(tmp_path, DRAWS + program)]) == [[11] * 8]


@pytest.mark.parametrize(
    ("seed", "rule"),
    [
        (-1, r"seed=-1 must be from 0 to 2\*\*32 - 1"),
        (1 << 32, r"seed=4294967296 must be .* use 0"),
        (1.5, "seed=1.5 must be an integer, got float"),
        ("7", "seed='7' must be an integer, got str"),
    ],
)
def test_a_seed_that_is_none_is_refused(seed: Any, rule: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rule), session("local", seed=seed):
        pass


def test_an_integer_of_numpy_is_a_seed() -> None:
    assert type(check_seed(np.int64(7))) is int
    with session("local", seed=np.uint32(7)), session("local", seed=7):
        assert np.random.get_state()[1][0] == 7  # type: ignore[index]  # numpy types it as two layouts


def test_seeding_and_stopping_twice_does_nothing_more() -> None:
    before: Mapping[int, object] = dict(enumerate(sys.meta_path))
    seed_process(3)
    stop_seeding()
    stop_seeding()
    assert dict(enumerate(sys.meta_path)) == before
