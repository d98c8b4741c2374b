from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from twinkle_ray.weights.planning.box_plan import SizedBox
from twinkle_ray.weights.planning.buckets import Bucket
from twinkle_ray.weights.planning.schedule import make_rounds
from twinkle_ray.weights.shards.box import Box

if TYPE_CHECKING:
    from twinkle_ray.weights.planning.box_plan import Distance

FAR: list[Distance] = ["host", "far"]


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Bucket], list[int], list[int]]:
    sources, targets = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    processes = draw(st.integers(2, 6))
    source_process = [draw(st.integers(0, processes - 1)) for _ in range(sources)]
    target_process = [draw(st.integers(0, processes - 1)) for _ in range(targets)]
    buckets: list[Bucket] = []
    content = (0,), ("uint8",), (SizedBox(Box.whole(()), 1),), 1
    for _ in range(draw(st.integers(0, 12))):
        source = draw(st.integers(0, sources - 1))
        reachable = [rank for rank in range(targets) if target_process[rank] != source_process[source]]
        if reachable:
            group = tuple(sorted(draw(st.sets(st.sampled_from(reachable), min_size=1))))
            distance: Distance = draw(st.sampled_from(FAR))
            buckets.append(Bucket(len(buckets), source, group, distance, *content))
    return buckets, source_process, target_process


@given(loads())
@settings(max_examples=60, deadline=None)
def test_every_process_gets_each_of_its_buckets_once_from_somebody_who_has_it(
    load: tuple[list[Bucket], list[int], list[int]],
) -> None:
    buckets, source_process, target_process = load
    had = {(bucket.index, source_process[bucket.source]) for bucket in buckets}
    received: list[tuple[int, int]] = []
    for hops in make_rounds(buckets, source_process, target_process):
        arriving = [(hop.bucket, hop.receiver) for hop in hops]
        assert all((hop.bucket, hop.sender) in had for hop in hops)
        had.update(arriving)
        received.extend(arriving)
    wanted = [
        (bucket.index, process) for bucket in buckets for process in {target_process[rank] for rank in bucket.targets}
    ]
    assert sorted(received) == sorted(wanted)


@given(loads())
@settings(max_examples=40, deadline=None)
def test_a_bucket_for_other_hosts_leaves_its_source_once(load: tuple[list[Bucket], list[int], list[int]]) -> None:
    buckets, source_process, target_process = load
    hops = [hop for hops in make_rounds(buckets, source_process, target_process) for hop in hops]
    for bucket in buckets:
        leaving = [hop for hop in hops if hop.bucket == bucket.index and not hop.forward]
        receivers = {target_process[rank] for rank in bucket.targets}
        assert len(leaving) == (1 if bucket.distance == "far" else len(receivers))


def test_sources_start_at_different_targets() -> None:
    content = (0,), ("uint8",), (SizedBox(Box.whole(()), 1),), 1
    buckets = [Bucket(4 * s + t, s, (t,), "far", *content) for s in range(4) for t in range(4)]
    rounds = make_rounds(buckets, [0, 1, 2, 3], [4, 5, 6, 7])
    assert len(rounds) == 4
    for hops in rounds:
        assert sorted(hop.sender for hop in hops) == [0, 1, 2, 3]
        assert sorted(hop.receiver for hop in hops) == [4, 5, 6, 7]
