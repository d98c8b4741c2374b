"""Checks: dividing the arguments over the workers."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.checks.failing import gate
from tests.conformance.harness import needs, plain, raises
from tests.conformance.subjects.components import Anywhere, Prompter, Writer
from tests.conformance.subjects.echo import Batch, Echo
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO

from twinkle_mesh import balanced_slice
from twinkle_remote import Replicate, explain, get, stats, submit
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness

    from twinkle_mesh import DeviceMesh


def _split(harness: Harness, mesh: DeviceMesh | None, size: int, length: int) -> list[slice]:
    """The rows of each worker, in rank order."""
    if harness.in_process:
        return [slice(0, length)]
    if mesh is None:
        return [balanced_slice(length, size, rank) for rank in range(size)]
    return [balanced_slice(length, mesh.data_world_size, mesh.data_rank(rank)) for rank in range(size)]


def _refused_by_name(method: Any, value: Any, name: str = "") -> None:
    """A server's clients send values of known types only; others are refused here, with the method and the type."""
    with raises(DispatchError, method.__qualname__, name or type(value).__name__, "cannot be sent"):
        method(value)


def slice_splits_lists_over_workers(harness: Harness) -> None:
    """Dispatch "slice": lists evenly over workers, whatever the mesh; all else whole."""
    for mesh in (None, FOUR["dp2 tp2"]):
        echo = harness.build(Echo, 4, mesh=mesh)
        whole: tuple[Any, ...] = ("text", {"rows": [1, 2, 3]}, 7, None)
        seen = harness.each(4, echo.given_by_worker(list(range(6)), *whole, key=[10, 11, 12, 13, 14, 15]))
        for rank, part in enumerate(_split(harness, None, 4, 6)):
            args, kwargs = (list(range(6))[part], *whole), {"key": [10, 11, 12, 13, 14, 15][part]}
            assert seen[rank] == (rank, args, kwargs), seen[rank]


def any_goes_to_the_least_busy_data_rank(harness: Harness) -> None:
    """Dispatch "any": calls that none has finished are even over four; with all peers of one; from workers too."""
    four = harness.workers(4)
    anywhere = harness.build(Anywhere, 4, mesh=FOUR["dp4"])
    with gate(harness) as path:
        held = [submit(anywhere.held, path) for _ in range(four if not harness.in_process else 0)]
        calls = [submit(anywhere.rank, f"prompt {number}") for number in range(1000)]
    made = Counter(get(held + calls))
    assert sum(made.values()) == len(held) + 1000 and len(made) == four, made
    assert max(made.values()) - min(made.values()) <= 1, made
    anywhere = harness.build(Anywhere, 4, mesh=FOUR["dp4"])
    alone = [plain(anywhere.rank("prompt")) for _ in range(8 * four)]
    assert set(Counter(alone).values()) == {8}, alone
    peers = harness.build(Anywhere, 4, mesh=FOUR["dp2 tp2"])
    assert {tuple(harness.each(2, peers.peers())) for _ in range(4)} == ({(0,)} if four == 1 else {(0, 1), (2, 3)})
    assert [plain(peers.rows([1, 2, 3])) for _ in range(2)] == [[1, 2, 3]] * 2
    asked = Counter(plain(harness.build(Prompter, 1).prompts(anywhere, 8)))
    assert set(asked.values()) == {8 // four}, asked


@needs(apart=True)
def any_leaves_a_busy_data_rank_alone(harness: Harness) -> None:
    """A data rank with a call in flight gets none as long as others have none."""
    anywhere = harness.build(Anywhere, 4, mesh=FOUR["dp4"])
    with gate(harness) as path:
        busy = submit(anywhere.held, path)
        others = [plain(anywhere.rank("prompt")) for _ in range(9)]
    assert plain(busy) not in others and len(set(others)) == 3, others
    assert "Anywhere.rank on" in str(explain(anywhere.rank, "prompt")) and len(explain(anywhere.rank, "").rows) == 1
    assert [one for one in stats() if one.method == "Anywhere.rank"][-1].workers == 1 or harness.served


def sticky_calls_with_equal_values_go_to_one_data_rank(harness: Harness) -> None:
    """`sticky=`: the same data rank for equal values, in every process; another type than text, numbers: an error."""
    anywhere, caller = harness.build(Anywhere, 4, mesh=FOUR["dp4"]), harness.build(Prompter, 2)
    keys: list[Any] = ["one", "two", "three", "four", "five", 1, 2.5, ("a", 7)]
    ranks = [get(submit(anywhere.sticky, key)) for key in keys]
    assert ranks == [get(submit(anywhere.sticky, key, rows=[1])) for key in keys]
    assert get(submit(anywhere.sticky, 1.0)) == ranks[keys.index(1)]
    assert len(set(ranks)) > 1 or harness.in_process
    assert all(seen == ranks for seen in harness.each(2, caller.sticks(anywhere, keys)))
    with raises(DispatchError, "Anywhere.sticky: sticky='key'", "got list"):
        get(submit(anywhere.sticky, ["no key"]))


def all_sends_everything_whole(harness: Harness) -> None:
    """Dispatch "all": every worker receives all arguments whole."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    seen = harness.each(4, echo.given_whole([1, 2, 3], (4,), key={"rows": [5]}))
    assert seen == [(rank, ([1, 2, 3], (4,)), {"key": {"rows": [5]}}) for rank in range(harness.workers(4))]


def slice_dp_splits_by_data_rank_on_every_mesh(harness: Harness) -> None:
    """Dispatch "slice_dp": by data rank; ranks that differ in tp, pp, cp or ulysses see the same rows."""
    for name, mesh in EIGHT.items():
        echo = harness.build(Echo, 8, mesh=mesh)
        rows = list(range(11))
        seen = harness.each(8, echo.given(rows))
        for rank, part in enumerate(_split(harness, mesh, 8, 11)):
            assert seen[rank] == (rank, (rows[part],), {}), (name, seen[rank])


def slice_dp_without_a_mesh_splits_over_workers(harness: Harness) -> None:
    """Dispatch "slice_dp" of a component without a mesh: each worker is a data rank."""
    seen = harness.each(4, harness.build(Echo, 4).given([1, 2, 3, 4, 5]))
    assert [args[0] for _, args, _ in seen] == [[1, 2, 3, 4, 5][part] for part in _split(harness, None, 4, 5)]


def callable_dispatch_gets_length_index_and_mesh(harness: Harness) -> None:
    """A callable dispatch makes each worker's arguments; it gets the mesh, or None without one."""
    for mesh in (None, FOUR["dp2 tp2"]):
        echo = harness.build(Echo, 4, mesh=mesh)
        count = harness.workers(4)
        seen = harness.each(4, echo.given_by_function("value"))
        assert seen == [("value", (rank, count), mesh is not None) for rank in range(count)]


def execute_first_runs_on_the_first_worker(harness: Harness) -> None:
    """A function with execute "first" runs on one worker with all rows, and returns the bare value."""
    assert harness.build(Echo, 4, mesh=FOUR["dp4"]).first_only([1, 2, 3]) == (0, [1, 2, 3])


def a_marked_argument_goes_whole(harness: Harness) -> None:
    """`Replicate(value)`, also in a dict beside columns that are divided."""
    echo = harness.build(Echo, 2, mesh=TWO)
    shares = [[1, 2, 3]] if harness.in_process else [[1, 2], [3]]
    for wrap in (lambda rows: rows, lambda rows: submit(echo.rows, rows)):
        given = harness.each(2, echo.given(wrap([1, 2, 3]), {"ids": [1, 2, 3], "stop": Replicate(wrap([7, 8]))}))
        want: list[Any] = [(rank, ([*share], {"ids": share, "stop": [7, 8]}), {}) for rank, share in enumerate(shares)]
        assert given == want, given


def a_batch_smaller_than_the_mesh_leaves_empty_slices(harness: Harness) -> None:
    """Data ranks without rows enter the call with an empty slice of the right type."""
    mesh = EIGHT["dp8"]
    echo = harness.build(Echo, 8, mesh=mesh)
    batch = {"list": [1, 2], "tuple": ([1, 2], "a"), "data": Batch([1, 2], [3, 4])}
    seen = harness.each(8, echo.given(batch))
    assert len(seen) == harness.workers(8)
    for rank, part in enumerate(_split(harness, mesh, 8, 2)):
        want = {"list": [1, 2][part], "tuple": ([1, 2][part], "a"), "data": Batch([1, 2][part], [3, 4][part])}
        assert seen[rank][1] == (want,), seen[rank]
    assert echo.rows([]) == [] and echo.rows(([], [])) == ([], []) and echo.rows({"a": []}) == {"a": []}


def wrong_arguments_are_refused_before_anything_is_sent(harness: Harness) -> None:
    """A TypeError on the caller that shows the signature; no worker receives the call."""
    faulty = harness.build(Faulty, 4)
    untyped = cast("Any", faulty)
    with raises(TypeError, "Faulty.takes(rows: ", "unexpected keyword argument 'row'"):
        untyped.takes([1], row=[1])
    with raises(TypeError, "Faulty.takes", "missing a required argument: 'rows'"):
        untyped.takes()
    with raises(TypeError, "too many positional arguments"):
        untyped.takes([1], 2)
    assert harness.each(4, faulty.count()) == [0] * harness.workers(4)


def no_argument_is_mutated(harness: Harness) -> None:
    """Calls do not change the values of the caller, and do not replace the objects inside them."""
    echo = harness.build(Echo, 8, mesh=EIGHT["dp4 cp2"])
    inner = [1, 2, 3]
    data = Batch([4, 5, 6], [7, 8, 9])
    batch = {"rows": inner, "data": data}
    for method in (echo.rows, echo.copies, echo.given_by_worker):
        plain(method(batch))
        assert batch == {"rows": [1, 2, 3], "data": Batch([4, 5, 6], [7, 8, 9])}
        assert batch["rows"] is inner and batch["data"] is data


@needs("numpy", "torch", "pandas")
def what_a_method_is_given_is_its_own_or_read_only(harness: Harness) -> None:
    """A method receives arrays that are read-only, and tensors and frames that are its own copies."""
    numpy, torch, pandas = import_module("numpy"), import_module("torch"), import_module("pandas")
    writer, echo = harness.build(Writer, 4, mesh=FOUR["dp2 tp2"]), harness.build(Echo, 2, mesh=TWO)
    of_frames = harness.build(Writer, 2, mesh=TWO)
    for rows in (4, 60_000):
        array, tensor = numpy.ones((rows, 2)), torch.ones(rows)
        batch = {"arrays": {"c": array, "f": numpy.asfortranarray(array), "cut": array[:, ::2], "one": array[:, 0]}}
        for given in (batch, submit(echo.rows, batch), {"arrays": submit(echo.rows, batch["arrays"])}):
            assert harness.each(4, writer.writable(given)) == [[False] * 4] * harness.workers(4), rows
        with raises(ValueError, "read-only"):
            plain(writer.doubled(array))
        with raises(ValueError, "read-only"):
            plain(writer.clear({"array": array}))
        assert array.sum() == 2 * rows and array.flags.writeable
        frame = pandas.DataFrame({"x": numpy.ones(rows)})
        for taker, value in ((writer, tensor),) if harness.served else ((writer, tensor), (of_frames, frame)):
            assert plain(taker.doubled(value)).sum().item() == 2 * rows and value.sum().item() == rows
            assert plain(taker.doubled(submit(echo.rows, value))).sum().item() == 2 * rows
        plain(writer.clear({"tensor": tensor}))
        assert tensor.sum() == rows


CHECKS = (
    any_goes_to_the_least_busy_data_rank,
    any_leaves_a_busy_data_rank_alone,
    sticky_calls_with_equal_values_go_to_one_data_rank,
    slice_splits_lists_over_workers,
    all_sends_everything_whole,
    slice_dp_splits_by_data_rank_on_every_mesh,
    slice_dp_without_a_mesh_splits_over_workers,
    callable_dispatch_gets_length_index_and_mesh,
    execute_first_runs_on_the_first_worker,
    a_marked_argument_goes_whole,
    a_batch_smaller_than_the_mesh_leaves_empty_slices,
    wrong_arguments_are_refused_before_anything_is_sent,
    no_argument_is_mutated,
    what_a_method_is_given_is_its_own_or_read_only,
)
