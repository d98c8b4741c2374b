from __future__ import annotations

import pytest
import torch

from twinkle_ray.weights import Shard, WeightSync


def full(i, shape, dtype=torch.float32, salt=0):
    g = torch.Generator().manual_seed(i * 1000 + salt)
    return torch.randn(shape, generator=g).to(dtype)


class Trainer:
    def __init__(self, rank, n):
        self.rank = rank
        self.n = n
        self.salt = 0
        self.make()

    def make(self):
        self.w = {}
        for i in range(5):
            t = full(i, (8, 6), salt=self.salt)
            k = 8 // self.n
            self.w[f"w{i}"] = Shard(t[self.rank * k : (self.rank + 1) * k].clone(), (8, 6), (self.rank * k, 0))
        self.w["scalar"] = full(99, (), salt=self.salt)
        self.w["big"] = full(77, (700, 900), salt=self.salt)

    def weights(self):
        return self.w


class Sampler:
    def __init__(self, rank):
        self.w = {f"w{i}": torch.zeros(8, 6) for i in range(5)} | {
            "scalar": torch.zeros(()),
            "big": torch.zeros(700, 900),
        }
        self.versions = []

    def weights(self):
        return self.w

    def on_weights(self, v):
        self.versions.append(v)


def bump(self):
    self.salt += 1
    self.make()


def check(self, salt):
    for i in range(5):
        assert torch.equal(self.w[f"w{i}"], full(i, (8, 6), salt=salt))
    assert torch.equal(self.w["scalar"], full(99, (), salt=salt))
    assert torch.equal(self.w["big"], full(77, (700, 900), salt=salt))
    return self.versions


@pytest.mark.parametrize("transport", ["auto", "gloo", "shared"])
@pytest.mark.parametrize("checksum", [False, True])
def test_basic(process_crew, transport, checksum):
    a = process_crew("actor", Trainer, [(r, 2) for r in range(2)])
    b = process_crew("sampler", Sampler, [(r,) for r in range(3)])
    s = WeightSync(a, b, transport=transport, timeout=60, checksum=checksum)
    assert s() == 1
    assert b.run(check, 0) == [[1]] * 3
    a.run(bump)
    assert s() == 2
    assert b.run(check, 1) == [[1, 2]] * 3
    a.run(bump)
    h = s.start()
    a.run(bump)
    assert h.result() == 3
    assert b.run(check, 2) == [[1, 2, 3]] * 3
    s.close()


def test_plain():
    t = Trainer(0, 1)
    u = Sampler(0)
    s = WeightSync(t, u)
    assert s() == 1
    assert check(u, 0) == [1]
