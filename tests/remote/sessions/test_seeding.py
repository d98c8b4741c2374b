"""What a seed says of the generators of a process: at the start of a session, and before each constructor."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from numpy.random import mtrand

from twinkle_mesh import DeviceGroup
from twinkle_remote import current_worker, on, remote_class, remote_function, session
from twinkle_remote.sessions.seeding import check_seed, read_generators, set_generators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

GROUPS = [DeviceGroup("four", 4, "CPU"), DeviceGroup("two", 2, "CPU")]
SEED = 11
Draws = list[tuple[float, float, float]]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = read_generators()
    yield
    set_generators(before)


@pytest.fixture
def threads() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # with 1e-5 threads of a busy machine did nothing but switch, for many minutes
    try:
        with session("threads", groups=GROUPS, seed=SEED, lazy_collect=False):
            yield
    finally:
        sys.setswitchinterval(interval)


def draw(count: int = 40) -> Draws:
    return [(random.random(), float(np.random.random()), float(torch.rand(()))) for _ in range(count)]


def expected(seed: int, count: int = 40) -> Draws:
    python, numpy = random.Random(seed), np.random.RandomState(seed)
    generator = torch.Generator().manual_seed(seed)
    return [
        (python.random(), float(numpy.random_sample()), float(torch.rand((), generator=generator)))
        for _ in range(count)
    ]


@remote_class()
class Drawing:
    """Draws in its constructor.

    Args:
        seed: What it seeds the generators with first; None does not.
        before: Runs on each rank before it draws.
    """

    def __init__(self, seed: int | None = None, before: Callable[[], object] | None = None) -> None:
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
        if before is not None:
            before()
        self.drawn = draw()

    @remote_function(dispatch="all")
    def told(self) -> Draws:
        return self.drawn

    @remote_function(execute="first")
    def draws_on_one(self) -> None:
        draw(2)


@remote_class()
class Outer:
    def __init__(self) -> None:
        self.first = draw(2)
        if current_worker().rank == 0:
            self.inner = on("four").create(Drawing, 5)
        self.second = draw(2)

    @remote_function(dispatch="all")
    def told(self) -> Draws:
        return self.first + self.second


@pytest.mark.usefixtures("threads")
def test_a_constructor_that_seeds_draws_the_same_on_every_rank() -> None:
    assert on("four").create(Drawing, 7).told() == [expected(7)] * 4


@pytest.mark.usefixtures("threads")
def test_each_component_has_the_next_seed_whatever_was_drawn_on_some_ranks_before() -> None:
    first = on("four").create(Drawing)
    first.draws_on_one()
    second = on("four").create(Drawing)
    assert first.told() == [expected(SEED)] * 4 and second.told() == [expected(SEED + 1)] * 4


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_the_programs_own_generators_do_not_move(mode: str) -> None:
    with session(mode, groups=GROUPS, seed=SEED, lazy_collect=False):
        assert draw(1) == expected(SEED, 1)
        random.seed(1), np.random.seed(1), torch.manual_seed(1)
        told = on("four").create(Drawing).told()
        assert draw() == expected(1)
    assert told == (expected(SEED) if mode == "local" else [expected(SEED)] * 4)


@pytest.mark.usefixtures("threads")
def test_a_constructor_that_waits_for_another_one_lets_it_run_and_goes_on_with_its_own_draws() -> None:
    assert on("two").create(Outer).told() == [expected(SEED, 4)] * 2


@pytest.mark.usefixtures("threads")
def test_constructors_run_one_at_a_time() -> None:
    free = threading.Lock()

    def alone() -> None:
        assert free.acquire(blocking=False)
        draw(10)
        free.release()

    on("four").create(Drawing, None, alone)


def test_in_one_process_a_constructor_that_builds_another_one_goes_on_with_its_own_draws() -> None:
    with session("local", seed=SEED):
        assert on("two").create(Outer).told() == expected(SEED, 4)


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


@pytest.mark.processes
def test_launched_processes_draw_alike_also_after_draws_of_their_own(tmp_path: Path) -> None:
    program = """
    import json, random
    import numpy
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Model:
        def __init__(self):
            self.drawn = [random.random(), float(numpy.random.rand())]

        @twinkle.remote_function(dispatch="all")
        def told(self):
            return self.drawn

    with twinkle.session("local", groups=[DeviceGroup("actor", 2, "CPU")], seed=9, exchange_timeout=120):
        for _ in range(3 + twinkle.current_worker().world_size):
            random.random()
        [random.random() for _ in range(int(__import__("os").environ["RANK"]))]
        models = [twinkle.on("actor").create(Model) for _ in range(2)]
        print(json.dumps([list(model.told()) for model in models]))
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    both = told([start(tmp_path, program, RANK=str(rank), **shared) for rank in range(2)])
    alike = [[[python, numpy]] * 2 for seed in (9, 10) for python, numpy, _ in expected(seed, 1)]
    assert both == [alike] * 2


@pytest.mark.parametrize(
    ("seed", "rule"),
    [
        (-1, r"seed=-1 must be from 0 to 2\*\*32 - 1"),
        (1 << 32, r"seed=4294967296 must be .* use 0"),
        (1.5, "'float' object cannot be interpreted as an integer"),
        ("7", "'str' object cannot be interpreted as an integer"),
    ],
)
def test_a_seed_that_is_none_is_refused(seed: Any, rule: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rule), session("local", seed=seed):
        pass


def test_an_integer_of_numpy_is_a_seed() -> None:
    assert type(check_seed(np.int64(7))) is int
    with session("local", seed=np.uint32(7)), session("local", seed=7):
        assert np.random.get_state()[1][0] == 7  # type: ignore[index]  # numpy types it as two layouts


@pytest.mark.parametrize("kind", [np.random.MT19937, np.random.PCG64, np.random.Philox, np.random.SFC64])
def test_generators_that_are_set_again_draw_the_same_whatever_kind_numpys_is(kind: Any) -> None:
    program = mtrand.get_bit_generator()
    mtrand.set_bit_generator(kind(5))
    try:
        np.random.standard_normal()  # it saves every second deviate
        before = read_generators()
        first = np.random.standard_normal(), draw(3)
        set_generators(before)
        assert (np.random.standard_normal(), draw(3)) == first
    finally:
        mtrand.set_bit_generator(program)
