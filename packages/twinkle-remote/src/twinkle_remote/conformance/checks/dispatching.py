"""Checks: dividing the arguments over the workers."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, deque
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from twinkle_mesh import balanced_slice
from twinkle_remote.call.arguments import Replicate
from twinkle_remote.call.submit import submit
from twinkle_remote.conformance.harness import needs, plain, raises
from twinkle_remote.conformance.subjects.components import Writer
from twinkle_remote.conformance.subjects.echo import Batch, Echo, Pair, Side, Strip, StripSplitter, Table
from twinkle_remote.conformance.subjects.faults import Faulty
from twinkle_remote.conformance.subjects.layouts import EIGHT, FOUR, TWO
from twinkle_remote.errors import CollectError, DispatchError
from twinkle_remote.sessions.collector import collector_paused
from twinkle_remote.values.registered_splitters import register_splitter

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh
    from twinkle_remote.conformance.harness import Harness


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
        whole: tuple[Any, ...] = ((1, 2, 3, 4, 5, 6), "text", {"rows": [1, 2, 3]}, 7, None)
        seen = harness.each(4, echo.given_by_worker(list(range(6)), *whole, key=[10, 11, 12, 13, 14, 15]))
        for rank, part in enumerate(_split(harness, None, 4, 6)):
            args, kwargs = (list(range(6))[part], *whole), {"key": [10, 11, 12, 13, 14, 15][part]}
            assert seen[rank] == (rank, args, kwargs), seen[rank]


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


def slice_dp_splits_nested_columns(harness: Harness) -> None:
    """Dispatch "slice_dp": lists and tuples, also inside dicts, dataclasses and named tuples, at any depth."""
    mesh = EIGHT["dp2 pp2 tp2"]
    echo = harness.build(Echo, 8, mesh=mesh)
    batch = {
        "tuple": (1, 2, 3),
        "data": Batch([4, 5, 6], ["a", "b", "c"]),
        "pair": Pair([7, 8, 9], ["x", "y", "z"]),
        "deep": {"in": {"rows": [[1], [2], [3]]}},
        "scalar": 5,
        "text": "abc",
    }
    seen = harness.each(8, echo.given(batch))
    for rank, part in enumerate(_split(harness, mesh, 8, 3)):
        want = {
            "tuple": (1, 2, 3)[part],
            "data": Batch([4, 5, 6][part], ["a", "b", "c"][part]),
            "pair": Pair([7, 8, 9][part], ["x", "y", "z"][part]),
            "deep": {"in": {"rows": [[1], [2], [3]][part]}},
            "scalar": 5,
            "text": "abc",
        }
        assert seen[rank] == (rank, (want,), {}), seen[rank]


@needs("numpy", "torch")
def slice_dp_splits_arrays_and_tensors(harness: Harness) -> None:
    """Dispatch "slice_dp": the first dim of arrays and tensors, of any size; 0-d ones go whole."""
    numpy, torch = import_module("numpy"), import_module("torch")
    mesh = FOUR["fsdp2 dp2"]
    echo = harness.build(Echo, 4, mesh=mesh)
    for length in (6, 0, 40_000):
        array = numpy.arange(length * 2, dtype="float32").reshape(length, 2)
        tensor = torch.arange(length)
        seen = harness.each(4, echo.given(array, {"tensor": tensor}, numpy.array(3), torch.tensor(4)))
        for rank, part in enumerate(_split(harness, mesh, 4, length)):
            args = seen[rank][1]
            assert args[0].dtype == array.dtype and numpy.array_equal(args[0], array[part]), args
            assert torch.equal(args[1]["tensor"], tensor[part]), args
            assert args[2] == 3 and args[3] == 4, args


@needs("numpy", "pandas", "polars", "pyarrow", "datasets")
def slice_dp_splits_frames_tables_and_datasets(harness: Harness) -> None:
    """Dispatch "slice_dp": frames, tables and datasets by row; each rank has its own, and they come back as one."""
    numpy, pandas, polars, arrow, datasets = map(import_module, ("numpy", "pandas", "polars", "pyarrow", "datasets"))
    echo = harness.build(Echo, 2, mesh=TWO)
    for rows in (5, 1, 0, 30_000):
        x = numpy.arange(rows)
        for batch in (
            pandas.DataFrame({"x": x}),
            polars.DataFrame({"x": x}),
            arrow.table({"x": x}),
            datasets.Dataset.from_dict({"x": x.tolist()}, features=datasets.Features({"x": datasets.Value("int64")})),
        ):
            if harness.served:
                _refused_by_name(echo.sizes, batch)
                continue
            sizes = [len(x[part]) for part in _split(harness, TWO, 2, rows)]
            assert harness.each(2, echo.sizes(batch)) == sizes, (type(batch), rows)
            back = plain(echo.rows({"batch": batch}))["batch"]
            assert type(back) is type(batch) and list(back["x"]) == list(batch["x"]), (type(batch), rows)
            assert harness.each(2, echo.sizes(submit(echo.rows, batch))) == sizes, (type(batch), rows)


def slice_dp_splits_mappings_of_any_type(harness: Harness) -> None:
    """Dispatch "slice_dp": a mapping of any type by column; it arrives, and comes back, as its type."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp2 tp2"])
    for batch in (
        OrderedDict(rows=[1, 2, 3], note="n"),
        defaultdict(list, rows=[1, 2, 3]),
        UserDict(rows=[1, 2, 3]),
        Table({"rows": [1, 2, 3]}, "name"),
    ):
        if harness.served:
            _refused_by_name(echo.given, batch)
            continue
        seen = harness.each(4, echo.given(batch))
        for rank, part in enumerate(_split(harness, FOUR["dp2 tp2"], 4, 3)):
            got = seen[rank][1][0]
            assert type(got) is type(batch) and got["rows"] == [1, 2, 3][part], (got, rank)
        back = plain(echo.rows(batch))
        assert type(back) is type(batch) and dict(back) == dict(batch) and batch["rows"] == [1, 2, 3]
        assert getattr(back, "name", None) == getattr(batch, "name", None)


def slice_dp_refuses_containers_that_it_does_not_know(harness: Harness) -> None:
    """A container of an unknown type is an error that says what to do, at any depth."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    rows = deque([1, 2, 3, 4])
    for method in (echo.given, echo.rows, echo.strict):
        for value in (rows, {"deep": {"rows": rows}}):
            if harness.served:
                _refused_by_name(method, value, "deque")
                continue
            with raises(DispatchError, "deque", "Replicate(value)", "split=", "register_splitter(deque"):
                method(value)
    for whole in ("text", b"bytes", bytearray(b"bytes"), Side, Side.LEFT):
        if harness.served and whole is Side:
            _refused_by_name(echo.given, whole, "type")
            continue
        assert harness.each(4, echo.given(whole, [1])) == harness.each(4, echo.given(Replicate(whole), [1])), whole
    if harness.served:
        _refused_by_name(echo.given, Replicate(rows), "deque")
    else:
        assert [args[0] for _, args, _ in harness.each(4, echo.given(Replicate(rows)))] == [rows] * harness.workers(4)
    made = submit(harness.build(Echo, 1).makes_deque, 4)
    with raises(DispatchError, "Echo.given", "a lazy argument", "deque", "Replicate(value)"):
        harness.each(4, echo.given(made))
    if harness.served:
        with raises(DispatchError, "Echo.given_whole", "deque", "cannot be sent"):
            harness.each(4, echo.given_whole(made))
        return
    assert harness.each(4, echo.given_whole(made)) == [(r, (rows,), {}) for r in range(harness.workers(4))]


def splitters_that_are_registered_go_with_the_calls(harness: Harness) -> None:
    """A splitter that only the caller's process registers also works on the workers."""
    echo = harness.build(Echo, 2, mesh=TWO)
    register_splitter(Strip, StripSplitter())
    if harness.served:
        _refused_by_name(echo.sizes, Strip([1, 2]))
        return
    for length in (0, 5, 30_000):
        strip = Strip(list(range(length)))
        sizes = [part.stop - part.start for part in _split(harness, TWO, 2, length)]
        assert harness.each(2, echo.sizes(strip)) == sizes, length
        assert harness.each(2, echo.sizes(submit(echo.rows, {"strip": strip}["strip"]))) == sizes, length
        assert plain(echo.rows(submit(echo.rows, strip))).items == strip.items, length


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


def replicate_marks_what_goes_whole(harness: Harness) -> None:
    """`Replicate(value)` goes whole, as an argument and inside of one, and arrives without its mark."""
    mesh = FOUR["dp4"]
    echo = harness.build(Echo, 4, mesh=mesh)
    seen = harness.each(4, echo.given({"rows": [1, 2, 3, 4], "stop": Replicate(["</s>", "<eos>"])}, Replicate([9])))
    for rank, part in enumerate(_split(harness, mesh, 4, 4)):
        assert seen[rank][1] == ({"rows": [1, 2, 3, 4][part], "stop": ["</s>", "<eos>"]}, [9]), seen[rank]


def decorator_names_what_is_split(harness: Harness) -> None:
    """`split=` and `replicate=` name arguments, given by place or by keyword."""
    mesh = FOUR["dp2 tp2"]
    echo = harness.build(Echo, 4, mesh=mesh)
    prompts, stop = ["a", "b", "c", "d"], ["</s>", "<eos>"]
    parts = [prompts[part] for part in _split(harness, mesh, 4, 4)]
    for method in (echo.only_prompts, echo.all_but_stop):
        assert harness.each(4, method(prompts, stop)) == [(part, stop) for part in parts]
        assert harness.each(4, method(stop=stop, prompts=prompts)) == [(part, stop) for part in parts]
    with raises(DispatchError, "split= names prompts", "str", "no rows"):
        echo.only_prompts("text")
    assert harness.each(4, echo.only_prompts(None)) == [(None, None)] * harness.workers(4)


def lengths_have_to_agree(harness: Harness) -> None:
    """All parts that a call splits have one length; the error names each part with its length, and what to do."""
    echo = harness.build(Echo, 4, mesh=FOUR["dp4"])
    with raises(DispatchError, "Echo.given", "args[0] has 4", "stop has 2", "Replicate"):
        echo.given([1, 2, 3, 4], stop=["</s>", "<eos>"])
    with raises(DispatchError, "args[0]['b'] has 1", "args[0]['a'] has 2"):
        echo.given({"a": [1, 2], "b": [1]})
    with raises(DispatchError, "Echo.given_by_worker", "args[0] has 3", "args[1] has 2"):
        echo.given_by_worker([1, 2, 3], [1, 2])


def generators_are_refused(harness: Harness) -> None:
    """A generator or another iterator that runs once is neither split nor sent, at any depth."""
    echo = harness.build(Echo, 2)
    for method in (echo.given, echo.given_by_worker, echo.given_whole):
        with raises(DispatchError, "generator", "list"):
            method(i for i in range(3))
        with raises(DispatchError, "map", "list"):
            method({"rows": map(str, [1, 2])})


@collector_paused()  # a finalizer that it runs at the limit of recursion fails
def arguments_that_contain_themselves_are_refused(harness: Harness) -> None:
    """A list or dict that contains itself is an error, as an argument and as a result."""
    echo = harness.build(Echo, 2, mesh=TWO)
    values: list[Any] = [[1], {"rows": [1, 2]}]
    values[0].append(values[0])
    values[1]["self"] = values[1]
    for method in (echo.given, echo.given_by_worker, echo.given_whole, echo.rows):
        for value in values:
            with raises(DispatchError, f"Echo.{method.__name__}", "contains itself"):
                method(value)
    with raises(CollectError, "Echo.makes_circle", "contains itself"):
        plain(echo.makes_circle())


def a_batch_smaller_than_the_mesh_leaves_empty_slices(harness: Harness) -> None:
    """Data ranks without rows enter the call with an empty slice of the right type."""
    mesh = EIGHT["dp8"]
    echo = harness.build(Echo, 8, mesh=mesh)
    batch = {"list": [1, 2], "tuple": (1, 2), "data": Batch([1, 2], [3, 4])}
    seen = harness.each(8, echo.given(batch))
    assert len(seen) == harness.workers(8)
    for rank, part in enumerate(_split(harness, mesh, 8, 2)):
        want = {"list": [1, 2][part], "tuple": (1, 2)[part], "data": Batch([1, 2][part], [3, 4][part])}
        assert seen[rank][1] == (want,), seen[rank]
    assert echo.rows([]) == [] and echo.rows(()) == () and echo.rows({"a": []}) == {"a": []}


def strict_refuses_what_does_not_divide(harness: Harness) -> None:
    """`uneven="strict"`: the error states the rows, the data ranks, and what to use."""
    mesh = FOUR["dp4"]
    echo = harness.build(Echo, 4, mesh=mesh)
    assert echo.strict(list(range(8))) == list(range(8))
    if not harness.in_process:
        with raises(DispatchError, "Echo.strict", "6 rows", "4 data ranks", "use 4 or 8"):
            echo.strict(list(range(6)))


def pad_repeats_rows_and_drops_their_results(harness: Harness) -> None:
    """`uneven="pad"`: equal shares, and a result for each row of the caller; also with fewer rows than ranks."""
    mesh = EIGHT["dp4 cp2"]
    echo = harness.build(Echo, 8, mesh=mesh)
    for length in (1, 2, 5, 8, 11):
        assert echo.padded(list(range(length))) == list(range(length)), length
        shares = harness.shares(mesh)
        assert set(harness.each(8, echo.padded_sizes(list(range(length))))) == {-(-length // shares)}, length
    with raises(DispatchError, "0 rows", "at least 1"):
        echo.padded([])


def drop_leaves_the_rest_out(harness: Harness) -> None:
    """`uneven="drop"`: the remainder is left out; an error if no rows would be left."""
    mesh = EIGHT["dp4 cp2"]
    echo = harness.build(Echo, 8, mesh=mesh)
    shares = harness.shares(mesh)
    for length in (4, 5, 11):
        assert echo.dropped(list(range(length))) == list(range(length - length % shares)), length
    if shares > 1:
        with raises(DispatchError, "3 rows", "4 data ranks", "at least 4"):
            echo.dropped([1, 2, 3])


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
    for method in (echo.rows, echo.padded, echo.copies, echo.given_by_worker):
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
    slice_splits_lists_over_workers,
    all_sends_everything_whole,
    slice_dp_splits_by_data_rank_on_every_mesh,
    slice_dp_without_a_mesh_splits_over_workers,
    slice_dp_splits_nested_columns,
    slice_dp_splits_arrays_and_tensors,
    slice_dp_splits_frames_tables_and_datasets,
    slice_dp_splits_mappings_of_any_type,
    slice_dp_refuses_containers_that_it_does_not_know,
    splitters_that_are_registered_go_with_the_calls,
    callable_dispatch_gets_length_index_and_mesh,
    execute_first_runs_on_the_first_worker,
    replicate_marks_what_goes_whole,
    decorator_names_what_is_split,
    lengths_have_to_agree,
    generators_are_refused,
    arguments_that_contain_themselves_are_refused,
    a_batch_smaller_than_the_mesh_leaves_empty_slices,
    strict_refuses_what_does_not_divide,
    pad_repeats_rows_and_drops_their_results,
    drop_leaves_the_rest_out,
    wrong_arguments_are_refused_before_anything_is_sent,
    no_argument_is_mutated,
    what_a_method_is_given_is_its_own_or_read_only,
)
