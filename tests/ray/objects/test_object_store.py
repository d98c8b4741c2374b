"""The data plane: what is stored once, what readers take and share, whose writes who sees, and what is left over."""

from __future__ import annotations

import dataclasses
import gc
import random
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh
from twinkle_ray.objects import segments

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_remote.sessions.telemetry import CallRecord

pytestmark = pytest.mark.ray
MB = 1 << 20
ROWS, WIDTH = 64, 8192  # 2 MB of float32: more than is copied at once, in shares too


@dataclasses.dataclass
class Batch:
    tokens: torch.Tensor
    extra: dict[str, Any]


def total(value: Any) -> float:
    return float(value.double().sum() if isinstance(value, torch.Tensor) else value.sum())


@twinkle.remote_class()
class Keeper:
    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    @twinkle.remote_function(dispatch="all")
    def keep(self, number: int, value: Any) -> None:
        self.kept[number] = value

    @twinkle.remote_function(dispatch="slice_dp")
    def keep_share(self, number: int, value: Any) -> None:
        self.kept[number] = value

    @twinkle.remote_function(dispatch="all")
    def write(self, number: int, row: int, value: float) -> None:
        rank = twinkle.current_worker().rank or 0
        self.kept[number][row % len(self.kept[number])] = value + rank

    @twinkle.remote_function(dispatch="all")
    def drop(self, number: int) -> None:
        del self.kept[number]

    @twinkle.remote_function(dispatch="all")
    def sums(self) -> dict[int, float]:
        return {number: total(value) for number, value in self.kept.items()}

    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, value: Any) -> Any:
        return value

    @twinkle.remote_function(dispatch="all")
    def what(self, value: Any) -> list[object]:
        tokens, extra = value.tokens, value.extra
        found = [
            tokens.dtype == torch.bfloat16,
            tokens.requires_grad,
            tuple(tokens.shape),
            extra["array"].flags.writeable,
        ]
        extra["view"].add_(1)
        return [*found, float(extra["view"].sum()), float(tokens.detach().float().sum()), float(extra["array"].sum())]

    @twinkle.remote_function(dispatch="all")
    def mappings(self) -> Any:
        gc.collect()
        return len(segments._live)


@pytest.fixture(scope="module")
def four(ray_session: None) -> Keeper:
    return twinkle.on("four", DeviceMesh.from_sizes(dp_size=2, tp_size=2)).create(Keeper)


def until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def in_use() -> int:
    gc.collect()
    return len(segments.pool._used)


def test_a_large_value_is_placed_and_freed_with_its_last_reader(four: Keeper) -> None:
    assert segments._allowed
    assert until(lambda: in_use() == 0)
    four.keep(1, torch.ones(ROWS, WIDTH))
    assert four.mappings() == [1] * 4
    assert until(lambda: in_use() == 0), "readers need the segment, not its ref"
    four.drop(1)
    assert four.mappings() == [0] * 4


def test_writes_views_types_and_gradients(four: Keeper) -> None:
    base = torch.ones(ROWS, WIDTH)
    tokens = base.bfloat16().requires_grad_()
    value = Batch(tokens, {"view": base[1:, ::2], "array": base.numpy()})
    size = base.numel()
    for _ in range(2):
        view = 2.0 * (ROWS - 1) * (WIDTH // 2)
        assert four.what(value) == [[True, True, (ROWS, WIDTH), False, view, float(size), float(size)]] * 4
    assert float(base.sum()) == size


def test_a_random_program_agrees_with_plain_copies(four: Keeper) -> None:
    draw = random.Random(0)
    expected: list[dict[int, torch.Tensor]] = [{} for _ in range(4)]
    for step in range(60):
        numbers = list(expected[0])
        action = draw.choice(["keep", "share", "write", "write", "drop"])
        if action in ("keep", "share"):
            value = torch.full((ROWS, WIDTH), float(step)).to(draw.choice([torch.float32, torch.bfloat16]))
            (four.keep if action == "keep" else four.keep_share)(step, value)
            halves = value.chunk(2)
            for rank, own in enumerate(expected):
                own[step] = (value if action == "keep" else halves[rank // 2]).clone()
            value.zero_()
        elif action == "write" and numbers:
            number, row = draw.choice(numbers), draw.randrange(ROWS)
            four.write(number, row, step)
            for rank, own in enumerate(expected):
                own[number][row % len(own[number])] = step + rank
        elif action == "drop" and numbers:
            number = draw.choice(numbers)
            four.drop(number)
            for own in expected:
                del own[number]
        sums = [{number: total(value) for number, value in own.items()} for own in expected]
        assert four.sums() == sums, f"step {step}: {action}"
    for number in list(expected[0]):
        four.drop(number)
    assert four.mappings() == [0] * 4
    assert until(lambda: in_use() == 0)


def last(method: str) -> CallRecord:
    return next(record for record in reversed(twinkle.stats()) if record.method == method)


@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_what_goes_to_all_is_stored_once(four: Keeper, kind: str) -> None:
    array = np.ones(2 * MB // 8)
    four.keep(1, array if kind == "array" else torch.from_numpy(array))
    record = last("Keeper.keep")
    assert array.nbytes <= record.driver_sent < 1.01 * array.nbytes
    assert all(array.nbytes <= size < 1.01 * array.nbytes for size in record.worker_fetched.values())
    assert four.sums() == [{1: array.sum()}] * 4


def test_what_is_divided_is_stored_once_and_read_by_rows(four: Keeper) -> None:
    array = np.arange(4.0 * MB // 8).reshape(64, -1)
    got = four.same({"x": array, "y": torch.from_numpy(array)})
    assert np.array_equal(got["x"], array) and np.array_equal(got["y"].numpy(), array)
    record = last("Keeper.same")
    assert 2 * array.nbytes <= record.driver_sent < 2.01 * array.nbytes
    assert all(array.nbytes <= size < 1.01 * array.nbytes for size in record.worker_fetched.values())


def test_a_snapshot_is_taken_of_arguments(four: Keeper) -> None:
    values: list[Any] = [np.ones(MB), torch.ones(10), torch.ones(MB)]
    made = [twinkle.submit(four.keep, number, value) for number, value in enumerate(values)]
    for value in values:
        value[:] = 7
    twinkle.get(made)
    assert four.sums() == [{0: MB, 1: 10, 2: MB}] * 4


LEFT_OVER = """
    import os, signal, time
    import torch
    import twinkle_remote as twinkle
    from twinkle_mesh import DeviceGroup

    @twinkle.remote_class()
    class Keeper:
        @twinkle.remote_function(dispatch="all", lazy_collect=False)
        def keep(self, value):
            self.value = value
            return os.getpid()

        @twinkle.remote_function(dispatch="all", lazy_collect=False)
        def total(self):
            return float(self.value.sum())

        @twinkle.remote_function(dispatch="all", lazy_collect=True)
        def made(self):
            return torch.ones(1 << 20)

    if __name__ == "__main__":
        before = set(os.listdir("/dev/shm"))
        with twinkle.session("ray", groups=[DeviceGroup("two", 2, "CPU")], restart="group") as session:
            keeper = twinkle.on("two").create(Keeper)
            pids = keeper.keep(torch.ones(1 << 20))
            made = keeper.made()
            made.wait()
            os.kill(pids[1], signal.SIGKILL)
            try:
                while True:
                    keeper.total()
                    time.sleep(0.05)
            except twinkle.WorkerDiedError:
                print("DIED")
            try:
                twinkle.get(made)
                print("READ")
            except twinkle.WorkerDiedError as error:
                print("GONE", "bytes of" in str(error))
            import twinkle_ray
            twinkle_ray.restart("two")
            keeper.keep(torch.full((1 << 20,), 2.0))
            assert keeper.total() == [2.0 * (1 << 20)] * 2
            print("RESTARTED", flush=True)
        from twinkle_ray.objects import segments
        assert not segments.pool._used and not segments.pool._free
        fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        held = [os.readlink(fd) for fd in fds if os.path.exists(fd)]
        assert not any("twinkle-segment" in name for name in held), held
        print("ENDED", [name for name in set(os.listdir("/dev/shm")) - before if "twinkle" in name])
"""


def test_nothing_is_left_over_when_workers_are_killed(joined_program: Callable[..., Any]) -> None:
    out = joined_program(LEFT_OVER).finish(120)
    assert "DIED" in out and "GONE True" in out and "RESTARTED" in out and "ENDED []" in out
