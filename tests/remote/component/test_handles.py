"""Components as objects: construction, handles, iteration and properties."""

from __future__ import annotations

import functools
import pickle
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.harness import plain, raises
from tests.conformance.subjects.components import Counter, Numbers
from tests.conformance.subjects.layouts import FOUR

from twinkle_mesh import DeviceMesh
from twinkle_remote import current_worker, explain, is_handle, on, release, remote_class, remote_function, submit
from twinkle_remote.errors import NotInitializedError, PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.conformance import Harness


@remote_class()
class Restarting(Numbers):
    """An iterator whose `__iter__` begins again."""

    def __iter__(self) -> Restarting:
        self.at = 0
        return self


@remote_class()
class Epochs(Numbers):
    """An iterator that is ready for the next epoch at the end of one."""

    def __next__(self) -> list[int]:
        if self.at >= self.stop:
            self.at = 0
            raise StopIteration
        return super().__next__()


@remote_class()
class Yielding:
    """A generator that goes on where the last one was left."""

    def __init__(self, stop: int) -> None:
        self.at = 0
        self.stop = stop

    def __iter__(self) -> Iterator[list[int]]:
        while self.at < self.stop:
            self.at += 1
            yield [self.at]


@remote_class(execute="first")
class Source:
    """Lives on the first worker alone."""

    def __init__(self, device_mesh: DeviceMesh | None = None) -> None:
        self.mesh = device_mesh

    @remote_function()
    def where(self) -> tuple[int | None, int]:
        """Rank and group size."""
        return current_worker().rank, current_worker().world_size

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        yield {"rows": [1, 2, 3]}
        yield {"rows": [4]}


@remote_class()
class Placed:
    """Declares the keywords of placement."""

    def __init__(
        self, device_mesh: DeviceMesh | None = None, remote_group: str | None = None, instance_id: str | None = None
    ) -> None:
        self.mesh = device_mesh
        self.group = remote_group
        self.id = instance_id

    @remote_function(collect="first")
    def told(self) -> tuple[Any, ...]:
        """The constructor's arguments, and the worker's context."""
        worker = current_worker()
        sizes = None if self.mesh is None else self.mesh.shape
        return self.group, self.id, sizes, self.mesh == worker.mesh, worker.group, dict(worker.coordinate)


@remote_class()
class Named:
    """Arguments with names that the call path uses itself."""

    def __init__(self, kind: int, cls: int, args: int, name: int, instance: int) -> None:
        self.given = [kind, cls, args, name, instance]

    @remote_function(dispatch="all", collect="first")
    def method(self, bound_method: int, kind: int, args: int, name: int, value: int) -> list[int]:
        return [*self.given, bound_method, kind, args, name, value]


class Base:
    @remote_function(dispatch="slice_dp", collect="flatten")
    def score(self, rows: list[str]) -> list[str]:
        return [f"base {row}" for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def again(self, rows: list[str]) -> list[str]:
        return [f"again {row}" for row in rows]


def _step(self: object, rows: list[str]) -> list[str]:
    return [f"trained {row}" for row in rows]


@remote_class()
class Aliased(Base):
    """Attributes that are other functions than their names say."""

    def _step(self, rows: list[str]) -> list[str]:
        return [f"helper {row}" for row in rows]

    update = remote_function(dispatch="slice_dp", collect="flatten")(_step)

    def score(self, rows: list[str]) -> list[str]:
        return [f"derived {row}" for row in rows]

    @remote_function(dispatch="slice_dp", collect="flatten")
    def again(self, rows: list[str]) -> list[str]:
        return [f"derived {row}" for row in super().again(rows)]


def test_names_do_not_choose_functions(harness: Harness) -> None:
    alone, remote = Aliased(), harness.build(Aliased, 2, mesh=DeviceMesh.from_sizes(dp_size=2))
    for name in ("update", "score", "again"):
        assert plain(getattr(remote, name)(["a", "b", "c"])) == getattr(alone, name)(["a", "b", "c"]), name


def test_a_decorator_above_is_refused() -> None:
    with raises(TypeError, "above @remote_function()"):

        @remote_class()
        class Decorated:
            score = functools.wraps(Base.score)(lambda self, rows: rows)


def test_without_a_group_an_object_is_just_built(harness: Harness) -> None:
    """No `remote_group`: an object of this process, with its attributes and methods."""
    counter = Counter(5)
    assert not is_handle(counter) and counter.value == 5 and counter.add(2) == 7 and counter.current == 7
    assert counter.private() == 7 and type(counter) is Counter


def test_both_spellings_build_the_same(harness: Harness) -> None:
    """`cls(..., remote_group=...)` and `on(...).create(cls, ...)`."""
    spelled = cast("Any", Counter)(3, remote_group=harness.groups[2])
    assert spelled.add(1) == on(harness.groups[2]).create(Counter, start=3).add(1) == 4


def test_placement_keywords_go_to_those_who_declare_them(harness: Harness) -> None:
    """`remote_group`, `device_mesh` and `instance_id` are removed unless the class declares them."""
    mesh = FOUR["dp2 tp2"]
    name = harness.groups[4]
    placed = harness.build(Placed, 4, mesh=mesh, instance_id=f"placed-{id(harness)}")
    group, instance, sizes, is_context, where, coordinate = plain(placed.told())
    assert (group, instance, where) == (name, f"placed-{id(harness)}", name)
    assert sizes == ((1, 1) if harness.in_process else (2, 2)) and is_context
    assert coordinate == {"dp": 0, "tp": 0}
    assert harness.build(Counter, 4, 1, mesh=mesh).add() == 2


def test_handles_are_instances_that_only_call(harness: Harness) -> None:
    """`isinstance(handle, cls)`; reading or setting anything but a remote function says what to do instead."""
    counter = harness.build(Counter, 2, 5)
    assert isinstance(counter, Counter)
    assert counter.twice(4) == 8 and counter.named() == "Counter"
    if harness.in_process:
        return
    assert is_handle(counter) and "Counter on" in repr(counter) and str(counter) == repr(counter)
    for name, hint in (
        ("value", "a method that returns it"),
        ("hidden", "the property's getter"),
        ("private", "the method"),
        ("kind", "a method that returns it"),
        ("unheard_of", "a method that returns it"),
    ):
        with raises(AttributeError, f"Counter.{name} lives on the workers of group", f"decorate {hint}"):
            getattr(counter, name)
    with raises(AttributeError, "Counter.value", "set it in a method"):
        counter.value = 3
    with raises(AttributeError, "Counter.__call__", "decorate the method"):
        counter()
    assert not hasattr(counter, "value")


def test_handles_stand_for_one_component(harness: Harness) -> None:
    """Copies of a handle, pickled ones too, are equal and call the same component."""
    counter = harness.build(Counter, 2)
    if harness.in_process:
        return
    twin = pickle.loads(pickle.dumps(counter))
    assert twin == counter and hash(twin) == hash(counter) and twin != harness.build(Counter, 2)
    assert counter.add() == 1 and twin.add() == 2


def test_instance_ids_are_taken_until_they_are_released(harness: Harness) -> None:
    """An `instance_id` that is taken on the group is refused; after `release` the handle of the first one is."""
    first = harness.build(Counter, 2, instance_id="again")
    with raises(PlacementError, "instance_id='again' is taken", harness.groups[2]):
        harness.build(Counter, 2, instance_id="again")
    assert first.add(1) == 1
    if harness.in_process:
        return
    release(first)
    second = harness.build(Counter, 2, instance_id="again")
    with raises(NotInitializedError, "'again' was released"):
        first.add(1)
    assert second.add(1) == 1


def test_first_classes_live_on_the_first_worker(harness: Harness) -> None:
    """A class with execute "first": one object, called there, whose value is bare; also in a loop."""
    source = harness.build(Source, 4, mesh=FOUR["dp4"])
    assert source.where() == (0, harness.workers(4))
    assert [plain(batch) for batch in source] == [{"rows": [1, 2, 3]}, {"rows": [4]}]


def test_unknown_groups_are_refused(harness: Harness) -> None:
    """An unknown group: the error lists the groups."""
    with raises(PlacementError, "no group 'nowhere'", harness.groups[4], harness.groups[1]):
        on("nowhere").create(Counter)


def test_meshes_have_to_fit_the_group(harness: Harness) -> None:
    """A mesh of another size than the group, or of other ranks: the error has both sizes."""
    with raises(PlacementError, "device_mesh has 4 ranks", "has 2 workers", "ranks=4", "world_size=2"):
        harness.build(Counter, 2, mesh=FOUR["dp4"])
    with raises(PlacementError, "ranks 0 to 1"):
        harness.build(Counter, 2, mesh=DeviceMesh.from_ranks([4, 5], ("dp",)))


def test_constructor_arguments_are_checked_on_the_caller(harness: Harness) -> None:
    """A TypeError with the signature, before anything is sent."""
    with raises(TypeError, "stop"):
        cast("Any", harness).build(Numbers, 2)
    with raises(TypeError, "step"):
        harness.build(Numbers, 2, 3, step=2)


def test_iterators_restart_like_the_object(harness: Harness) -> None:
    """A loop over the handle gets the same steps as a loop over the object, also after a restart or an epoch."""
    restarting = harness.build(Restarting, 1, 3)
    assert [[plain(batch) for batch in restarting] for _ in range(2)] == [[[10], [20], [30]]] * 2
    assert plain(next(iter(restarting))) == [10] and plain(next(restarting)) == [20]
    assert plain(next(iter(restarting))) == [10]
    epochs = harness.build(Epochs, 1, 3)
    assert [[plain(batch) for batch in epochs] for _ in range(3)] == [[[10], [20], [30]]] * 3
    yielding = harness.build(Yielding, 1, 4)
    for batch in yielding:
        assert plain(batch) == [1]
        break
    assert [plain(batch) for batch in yielding] == [[2], [3], [4]]


def test_any_name_of_an_argument_is_free(harness: Harness) -> None:
    """Arguments with names that the call path uses itself reach the constructor and the method."""
    placed: Any = {"kind": 1, "cls": 2, "args": 3, "name": 4, "instance": 5}
    sent: Any = {"bound_method": 6, "kind": 7, "args": 8, "name": 9, "value": 10}
    group = harness.groups[2]
    named: Any = Named
    for made in (on(group).create(named, **placed), named(**placed, remote_group=group)):
        assert plain(made.method(**sent)) == list(range(1, 11))
        assert submit(made.method, **sent).result() == list(range(1, 11))
        assert explain(made.method, **sent).name == "Named.method"


@remote_class()
class Building:
    """Builds a component on its own group."""

    def __init__(self) -> None:
        group = current_worker().group
        assert group is not None
        self.own = on(group).create(Counter, 100)

    @remote_function(dispatch="all", collect="first")
    def told(self) -> tuple[bool, int]:
        return type(self.own) is Counter, self.own.add(1)


def test_components_of_the_own_group_are_built_in_the_process(harness: Harness) -> None:
    """A component that is built on a worker of its own group is the object itself."""
    assert plain(harness.build(Building, 2).told()) == (True, 101)
