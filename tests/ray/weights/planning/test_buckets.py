from __future__ import annotations

from itertools import pairwise
from math import prod

from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.planning.box_plan import make_plan
from twinkle_ray.weights.planning.buckets import bucket_offsets, make_buckets
from twinkle_ray.weights.shards.box import Box
from twinkle_ray.weights.shards.specs import RankSpecs, TensorSpec

MIB = 1 << 20


def rows(shapes: list[tuple[int, ...]], rank: int, ranks: int) -> RankSpecs:
    """Specs of a rank that holds its share of the rows of each tensor."""
    specs = []
    for number, shape in enumerate(shapes):
        step = -(-shape[0] // ranks)
        low, high = min(step * rank, shape[0]), min(step * (rank + 1), shape[0])
        boxes = (Box((low, 0), (high - low, shape[1])),) if high > low else ()
        specs.append(TensorSpec(f"w{number}", "float32", shape, boxes, f"w{number}"))
    return tuple(specs)


shapes = st.lists(st.tuples(st.integers(1, 1500), st.sampled_from([3, 700, 2048])), min_size=1, max_size=8)


@given(shapes, st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_buckets_lie_apart_and_a_tensor_that_was_cut_is_contiguous(
    found: list[tuple[int, ...]], sources: int, targets: int
) -> None:
    """Each target holds all rows: what several sources send of a tensor is contiguous in one memory of the target."""
    plan = make_plan(
        [rows(found, rank, sources) for rank in range(sources)], [rows(found, 0, 1) for _ in range(targets)]
    )
    buckets = make_buckets(plan, 2 * MIB)
    offsets, size = bucket_offsets(buckets)
    assert offsets.keys() == {bucket.index for bucket in buckets}
    spans = sorted((offsets[bucket.index], offsets[bucket.index] + bucket.nbytes) for bucket in buckets)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert not spans or (spans[0][0], spans[-1][1]) == (0, size)
    for number, shape in enumerate(found):
        nbytes = 4 * prod(shape)
        parts = [bucket for bucket in buckets if number in bucket.entries]
        if nbytes < 4 * MIB or sources > 1 or any(len(bucket.entries) > 1 for bucket in parts):
            continue
        spans = sorted((offsets[bucket.index], offsets[bucket.index] + bucket.nbytes) for bucket in parts)
        assert spans[-1][1] - spans[0][0] == nbytes and spans[0][0] % 256 == 0


def test_the_rest_of_a_tensor_that_was_cut_has_a_bucket_of_its_own() -> None:
    specs = rows([(513, 2048), (3, 3)], 0, 1)  # 4 MiB and a row
    buckets = make_buckets(make_plan([specs], [specs]), 16 * MIB)
    assert [len(bucket.entries) for bucket in buckets] == [1, 1]
    buckets = make_buckets(make_plan([specs], [specs], bucket_bytes=2 * MIB), 2 * MIB)
    assert [(bucket.entries, bucket.nbytes) for bucket in buckets] == [
        ((0,), 2 * MIB),
        ((0,), 2 * MIB),
        ((0,), 8192),
        ((1,), 36),
    ]
    offsets, size = bucket_offsets(buckets)
    assert offsets == {0: 0, 1: 2 * MIB, 2: 4 * MIB, 3: 4 * MIB + 8192} and size == 4 * MIB + 8192 + 36
