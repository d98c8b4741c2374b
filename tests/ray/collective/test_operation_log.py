from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from twinkle_ray.collective.operation_log import KEPT, OperationLog, first_difference


def test_a_rank_reads_the_latest_operations_of_every_rank() -> None:
    store = HashStore()
    logs = [OperationLog(store, rank, 3) for rank in range(3)]
    for number in range(1, KEPT + 3):
        assert logs[0].enter("barrier") == number
        logs[0].publish()
    logs[1].enter("broadcast from 0 (2,) float32")
    logs[1].publish()
    for log in logs:
        assert log.entered() == {
            0: dict.fromkeys(range(3, KEPT + 3), "barrier"),
            1: {1: "broadcast from 0 (2,) float32"},
            2: {},
        }


def test_a_rank_that_gives_up_tells_of_it_and_of_what_it_entered() -> None:
    store = HashStore()
    first, second = OperationLog(store, 0, 2), OperationLog(store, 1, 2)
    first.enter("barrier")
    second.enter("all_gather_objects")
    first.give_up()
    assert second.given_up() == {0}
    assert second.entered() == {0: {1: "barrier"}, 1: {}}
    for _ in range(KEPT + 1):
        second.enter("barrier")
    assert second.given_up() == set()


OPERATIONS = st.dictionaries(st.integers(1, 4), st.sampled_from(["barrier", "all_reduce (2,) float32"]))


@given(st.dictionaries(st.integers(0, 4), OPERATIONS))
def test_the_first_difference_is_that_of_the_lowest_number_that_ranks_entered_differently(
    entered: dict[int, dict[int, str]],
) -> None:
    differing = [
        number
        for number in range(1, 5)
        if len({operations[number] for operations in entered.values() if number in operations}) > 1
    ]
    found = first_difference(entered)
    if found is None:
        assert differing == []
        return
    number, kinds = found
    assert number == differing[0]
    assert {rank: text for text, ranks in kinds.items() for rank in ranks} == {
        rank: operations[number] for rank, operations in entered.items() if number in operations
    }
