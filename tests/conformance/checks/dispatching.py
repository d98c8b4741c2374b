"""Checks: dividing the arguments over the workers."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tests.conformance.checks.failing import gate
from tests.conformance.harness import checks_of, needs, plain, raises
from tests.conformance.subjects.components import Anywhere, Prompter, Writer
from tests.conformance.subjects.echo import Echo
from tests.conformance.subjects.layouts import EIGHT, FOUR, TWO

from twinkle_mesh import balanced_slice
from twinkle_remote import Replicate, get, submit
from twinkle_remote.errors import DispatchError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness

    from twinkle_mesh import DeviceMesh


def shares_of(harness: Harness, mesh: DeviceMesh | None, size: int, length: int) -> list[slice]:
    """The rows of each worker, in rank order."""
    if harness.in_process:
        return [slice(0, length)]
    if mesh is None:
        return [balanced_slice(length, size, rank) for rank in range(size)]
    return [balanced_slice(length, mesh.data_world_size, mesh.data_rank(rank)) for rank in range(size)]


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


def slice_dp_splits_by_data_rank_on_every_mesh(harness: Harness) -> None:
    """Dispatch "slice_dp": by data rank; ranks that differ in tp, pp, cp or ulysses see the same rows."""
    for name, mesh in EIGHT.items():
        echo = harness.build(Echo, 8, mesh=mesh)
        rows = list(range(11))
        seen = harness.each(8, echo.given(rows))
        for rank, part in enumerate(shares_of(harness, mesh, 8, 11)):
            assert seen[rank] == (rank, (rows[part],), {}), (name, seen[rank])


def a_marked_argument_goes_whole(harness: Harness) -> None:
    """`Replicate(value)`, also in a dict beside columns that are divided."""
    echo = harness.build(Echo, 2, mesh=TWO)
    shares = [[1, 2, 3]] if harness.in_process else [[1, 2], [3]]
    for wrap in (lambda rows: rows, lambda rows: submit(echo.rows, rows)):
        given = harness.each(2, echo.given(wrap([1, 2, 3]), {"ids": [1, 2, 3], "stop": Replicate(wrap([7, 8]))}))
        want: list[Any] = [(rank, ([*share], {"ids": share, "stop": [7, 8]}), {}) for rank, share in enumerate(shares)]
        assert given == want, given


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


CHECKS = checks_of(globals())
