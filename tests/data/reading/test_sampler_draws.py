"""What samplers draw: generators of their own are part of a state, and ranks agree on draws from the global ones."""

import json
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from twinkle_data import DeviceMeshSampler, NotResumableError, StateMismatchError
from twinkle_mesh import DeviceMesh, use_rank


class Drawing:
    """A sampler of single indices, or of pairs, that draws from its own generator, also in the middle of a pass."""

    def __init__(self, generator: Any, *, pairs: bool) -> None:
        self.source = {"of": [generator]}
        self.batch_size = 2
        self.pairs = pairs

    def __len__(self) -> int:
        return 8 if self.pairs else 16

    def __iter__(self) -> Iterator[Any]:
        (generator,) = self.source["of"]
        for _ in range(len(self)):
            if isinstance(generator, torch.Generator):
                drawn = torch.randint(0, 1000, (2,), generator=generator).tolist()
            elif isinstance(generator, random.Random):
                drawn = [generator.randrange(1000), generator.randrange(1000)]
            elif isinstance(generator, np.random.Generator):
                drawn = generator.integers(0, 1000, 2).tolist()
            else:
                drawn = generator.randint(0, 1000, 2).tolist()
            yield drawn if self.pairs else drawn[0]


GENERATORS: list[Any] = [
    lambda: torch.Generator().manual_seed(3),
    lambda: random.Random(3),
    lambda: np.random.default_rng(3),
    lambda: np.random.Generator(np.random.MT19937(3)),
    lambda: np.random.RandomState(3),
]
SAMPLERS: list[Any] = [
    lambda: RandomSampler(range(16), generator=GENERATORS[0]()),
    lambda: RandomSampler(range(5), replacement=True, num_samples=16, generator=GENERATORS[0]()),
    lambda: RandomSampler(range(16), num_samples=40, generator=GENERATORS[0]()),
    lambda: SubsetRandomSampler(range(16), generator=GENERATORS[0]()),
    lambda: WeightedRandomSampler([1.0] * 16, 16, generator=GENERATORS[0]()),
    lambda: BatchSampler(RandomSampler(range(16), generator=GENERATORS[0]()), 4, False),
    lambda: BatchSampler(SubsetRandomSampler(range(18), generator=GENERATORS[0]()), 4, True),
    *[lambda make=make, pairs=pairs: Drawing(make(), pairs=pairs) for make in GENERATORS for pairs in (False, True)],
]


@pytest.mark.parametrize("number", range(len(SAMPLERS)))
def test_generators_of_the_users_are_part_of_the_state(number: int) -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    whole = DeviceMeshSampler(SAMPLERS[number](), mesh)
    epochs = []
    for epoch in range(3):
        whole.set_epoch(epoch)
        epochs.append(list(whole))
    assert epochs[0] != epochs[1]
    for stop in range(2 * len(epochs[0]) + 1):
        epoch, steps = divmod(stop, len(epochs[0]))
        cut = DeviceMeshSampler(SAMPLERS[number](), mesh)
        for before in range(epoch):
            cut.set_epoch(before)
            list(cut)
        cut.set_epoch(epoch)
        loop = iter(cut)
        begun = [next(loop) for _ in range(steps)]
        state = json.loads(json.dumps(cut.state_dict()))
        again = DeviceMeshSampler(SAMPLERS[number](), mesh)
        again.load_state_dict(state)
        assert (again.epoch, begun + list(again)) == (epoch, epochs[epoch])
        if epoch < 2:
            again.set_epoch(epoch + 1)
            assert list(again) == epochs[epoch + 1]


def test_the_last_step_of_an_epoch_is_followed_by_the_next() -> None:
    for make in SAMPLERS:
        mesh = DeviceMesh.from_sizes(dp_size=2)
        whole, cut, again = (DeviceMeshSampler(make(), mesh) for _ in range(3))
        list(whole)
        whole.set_epoch(1)
        loop = iter(cut)
        for _ in range(len(cut)):
            next(loop)  # all steps, and not the end
        again.load_state_dict(json.loads(json.dumps(cut.state_dict())))
        assert (again.epoch, list(again)) == (1, list(whole))


class Drawing16(Drawing):
    """Draws from a global generator, at once or for each element."""

    def __init__(self, draw: Any, *, lazily: bool) -> None:
        super().__init__(None, pairs=False)
        self.draw, self.lazily = draw, lazily

    def __iter__(self) -> Iterator[Any]:
        left = list(range(16))
        if self.lazily:
            while left:
                yield left.pop(self.draw(len(left)))
        else:
            yield from sorted(left, key=lambda _: self.draw(1 << 30))


def states() -> tuple[Any, ...]:
    numpys: Any = np.random.get_state()
    return random.getstate(), torch.default_generator.get_state().tolist(), numpys[1].tolist()


DRAWS: dict[str, Any] = {
    "random": random.randrange,
    "numpy": np.random.randint,
    "torch": lambda most: int(torch.randint(most, ())),
}


@pytest.mark.parametrize("library", DRAWS)
@pytest.mark.parametrize("lazily", [False, True])
def test_ranks_agree_on_what_comes_from_global_generators(library: str, *, lazily: bool) -> None:
    """As one process gives it, in passes that differ, on ranks in other states, and after a resume at each step."""

    def make() -> DeviceMeshSampler:
        return DeviceMeshSampler(Drawing16(DRAWS[library], lazily=lazily), mesh, batched=False)

    mesh = DeviceMesh.from_sizes(dp_size=2)
    driver = make()
    passes = [list(driver), list(driver)]
    driver.set_epoch(1)
    passes.append(list(driver))
    assert all(sorted(one) == list(range(16)) for one in passes)
    assert len({tuple(one) for one in passes}) == 3
    by_rank = []
    for rank in range(2):
        random.seed(rank), np.random.seed(rank), torch.manual_seed(rank)
        before = states()
        with use_rank(rank):
            sampler = make()
            by_rank.append([list(sampler), list(sampler)])
        assert states() == before
    assert [[*map(list, zip(*ranks, strict=True))] for ranks in zip(*by_rank, strict=True)] == [
        [[row, other] for row, other in zip(one[::2], one[1::2], strict=True)] for one in passes[:2]
    ]
    for number, whole in enumerate(passes[:2]):
        for stop in range(16):
            cut, again = make(), make()
            for _ in range(number):
                list(cut)
            loop = iter(cut)
            begun = [next(loop) for _ in range(stop)]
            again.load_state_dict(json.loads(json.dumps(cut.state_dict())))
            if stop or number == 0:
                assert begun + list(again) == whole


def test_what_cannot_be_saved_is_refused() -> None:
    mesh = DeviceMesh.from_sizes(dp_size=2)
    secret = DeviceMeshSampler(Drawing(random.SystemRandom(), pairs=False), mesh)
    next(iter(secret))
    with pytest.raises(NotResumableError, match="SystemRandom"):
        secret.state_dict()
    saved = DeviceMeshSampler(Drawing(random.Random(3), pairs=True), mesh).state_dict()
    with pytest.raises(StateMismatchError, match=r"generators|indices"):
        DeviceMeshSampler(Drawing(np.random.default_rng(3), pairs=True), mesh).load_state_dict(saved)


@pytest.mark.parametrize("batch_size", [2, 3, 4])
def test_a_batch_size_is_no_proof_of_batches(batch_size: int) -> None:
    for pairs in (False, True):
        inner = Drawing(random.Random(3), pairs=pairs)
        inner.batch_size = batch_size if not pairs else 2
        expected = list(Drawing(random.Random(3), pairs=pairs))
        random.seed(1)
        state = random.getstate()
        got = list(DeviceMeshSampler(inner, DeviceMesh.from_sizes(dp_size=2)))
        assert got == expected, "looking at the first element drew nothing"
        assert random.getstate() == state
