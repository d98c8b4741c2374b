"""Checks: components as objects: construction, handles, iteration, context managers, properties, release."""

from __future__ import annotations

import inspect
import pickle
from typing import TYPE_CHECKING, Any, cast

from tests.conformance.harness import needs, plain, raises
from tests.conformance.subjects import classes
from tests.conformance.subjects.components import Caller, Counter, Placed
from tests.conformance.subjects.echo import Echo
from tests.conformance.subjects.faults import Faulty
from tests.conformance.subjects.layouts import FOUR, TWO
from tests.conformance.subjects.lifetimes import Holder, Keeper, Seeded
from tests.conformance.subjects.loops import Epochs, Numbers, Restarting, Source, Yielding

from twinkle_mesh import DeviceMesh
from twinkle_remote import explain, is_handle, on, release, submit
from twinkle_remote.errors import NotInitializedError, PlacementError

if TYPE_CHECKING:
    from tests.conformance.harness import Harness


def without_a_group_an_object_is_just_built(harness: Harness) -> None:
    """No `remote_group`: an object of this process, with its attributes and methods."""
    counter = Counter(5)
    assert not is_handle(counter) and counter.value == 5 and counter.add(2) == 7 and counter.current == 7
    assert counter.private() == 7 and type(counter) is Counter


def both_spellings_build_the_same(harness: Harness) -> None:
    """`cls(..., remote_group=...)` and `on(...).create(cls, ...)`."""
    spelled = cast("Any", Counter)(3, remote_group=harness.groups[2])
    assert spelled.add(1) == on(harness.groups[2]).create(Counter, start=3).add(1) == 4


def placement_keywords_go_to_those_who_declare_them(harness: Harness) -> None:
    """`remote_group`, `device_mesh` and `instance_id` are removed unless the class declares them."""
    mesh = FOUR["dp2 tp2"]
    name = harness.groups[4]
    placed = harness.build(Placed, 4, mesh=mesh, instance_id=f"placed-{id(harness)}")
    group, instance, sizes, is_context, where, coordinate = plain(placed.told())
    assert (group, instance, where) == (name, f"placed-{id(harness)}", name)
    assert sizes == ((1, 1) if harness.in_process else (2, 2)) and is_context
    assert coordinate == {"dp": 0, "tp": 0}
    assert harness.build(Counter, 4, 1, mesh=mesh).add() == 2


def handles_are_instances_that_only_call(harness: Harness) -> None:
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


def handles_stand_for_one_component(harness: Harness) -> None:
    """Copies of a handle, pickled ones too, are equal and call the same component."""
    counter = harness.build(Counter, 2)
    if harness.in_process:
        return
    twin = pickle.loads(pickle.dumps(counter))
    assert twin == counter and hash(twin) == hash(counter) and twin != harness.build(Counter, 2)
    assert counter.add() == 1 and twin.add() == 2


def instances_are_independent(harness: Harness) -> None:
    """Two components of one class on one group are independent, also if one source line builds both."""
    first, second = (harness.build(Counter, 2, start) for start in (0, 100))
    assert (first.add(1), second.add(1), first.add(1)) == (1, 101, 2)


def instance_ids_are_taken_once(harness: Harness) -> None:
    """An `instance_id` that is taken on the group is refused."""
    first = harness.build(Counter, 2, instance_id="only")
    with raises(PlacementError, "instance_id='only' is taken", harness.groups[2]):
        harness.build(Counter, 2, instance_id="only")
    assert first.add(1) == 1


@needs(apart=True)
def instance_ids_are_free_after_a_release(harness: Harness) -> None:
    """An `instance_id` can be used again after `release`, and the handle of the first one stays refused."""
    first = harness.build(Counter, 2, instance_id="again")
    assert first.add(1) == 1
    release(first)
    second = harness.build(Counter, 2, instance_id="again")
    with raises(NotInitializedError, "'again' was released"):
        first.add(1)
    assert second.add(1) == 1
    with raises(PlacementError, "is taken"):
        harness.build(Counter, 2, instance_id="again")


def first_classes_live_on_the_first_worker(harness: Harness) -> None:
    """A class with execute "first": one object, called there, whose value is bare; also in a loop."""
    source = harness.build(Source, 4, mesh=FOUR["dp4"])
    assert source.where() == (0, harness.workers(4))
    assert [plain(batch) for batch in source] == [{"rows": [1, 2, 3]}, {"rows": [4]}]


def unknown_groups_are_refused(harness: Harness) -> None:
    """An unknown group: the error lists the groups."""
    with raises(PlacementError, "no group 'nowhere'", harness.groups[4], harness.groups[1]):
        on("nowhere").create(Counter)


def meshes_have_to_fit_the_group(harness: Harness) -> None:
    """A mesh of another size than the group, or of other ranks: the error has both sizes."""
    with raises(PlacementError, "device_mesh has 4 ranks", "has 2 workers", "ranks=4", "world_size=2"):
        harness.build(Counter, 2, mesh=FOUR["dp4"])
    with raises(PlacementError, "ranks 0 to 1"):
        harness.build(Counter, 2, mesh=DeviceMesh.from_ranks([4, 5], ("dp",)))


def constructor_arguments_are_checked_on_the_caller(harness: Harness) -> None:
    """A TypeError with the signature, before anything is sent."""
    with raises(TypeError, "stop"):
        cast("Any", harness).build(Numbers, 2)
    with raises(TypeError, "step"):
        harness.build(Numbers, 2, 3, step=2)


def signatures_are_the_constructors_own(harness: Harness) -> None:
    """`inspect.signature` of a remote class, of subclasses and after construction: what its constructor takes."""
    for _ in range(2):
        for cls, want in (
            (classes.Base, "(name: 'str', *, loud: 'bool' = False)"),
            (classes.Extending, "(name: 'str', suffix: 'str', **rest: 'Any')"),
            (classes.Inheriting, "(name: 'str', *, loud: 'bool' = False)"),
            (classes.Plain, "(name: 'str', rows: 'list[int]' = <factory>)"),
            (classes.Reversed, "(name: 'str')"),
            (classes.Made, "(name: 'str')"),
            (classes.Square, "()"),
        ):
            assert str(inspect.signature(cls)).partition(" ->")[0] == want, (cls, inspect.signature(cls))
        assert str(inspect.signature(classes.Base.tell)) == "(self, text: 'str') -> 'str'"
        assert harness.build(classes.Extending, 2, "big", "tail").tell("x") == "BIG x tail"
    assert str(inspect.signature(Counter(1))) == "() -> 'int'"


def handles_work_where_they_are_passed(harness: Harness) -> None:
    """A handle in a constructor's arguments or a call's is used there, from every rank."""
    counter = harness.build(Counter, 1, 10)
    caller = harness.build(Caller, 2, counter)
    called = harness.each(2, caller.call_other(1))
    assert sorted(called) == [11 + i for i in range(harness.workers(2))]
    other = harness.build(Counter, 4, 50)
    assert caller.call_given(other, 5) == 55 and other.add(0) == 55


def handles_of_the_own_group_call_the_own_rank(harness: Harness) -> None:
    """On a worker that holds the component, a call of its handle just runs there."""
    counter = harness.build(Counter, 2, 1)
    caller = harness.build(Caller, 2, counter)
    assert harness.each(2, caller.call_other(2)) == [3] * harness.workers(2)
    assert counter.add(0) == 3


def components_of_the_own_group_are_built_in_the_process(harness: Harness) -> None:
    """A component that is built on a worker of its own group is the object itself."""
    caller = harness.build(Caller, 2, harness.build(Counter, 1), mine=True)
    assert caller.own_type() == "Counter 101 True"


def iterators_end_and_lose_nothing(harness: Harness) -> None:
    """`for` over an iterator: every step, then the end; after a `break` the next loop gets the remaining steps."""
    for mesh, data in ((None, range(2)), (TWO, range(2)), (DeviceMesh.from_sizes(dp_size=1, tp_size=2), range(1))):
        numbers = harness.build(Numbers, 2, 5, mesh=mesh)
        shares = range(1) if harness.in_process else data
        steps = [[10 * step + rank for rank in shares] for step in range(1, 6)]
        assert len(numbers) == 5
        seen = []
        for batch in numbers:
            seen.append(plain(batch))
            if len(seen) == 2:
                break
        seen.append(plain(next(numbers)))
        seen.extend(plain(batch) for batch in numbers)
        assert seen == steps, seen
        assert list(numbers) == []
        with raises(StopIteration):
            next(numbers)


def iterators_restart_like_the_object(harness: Harness) -> None:
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


def properties_are_read_on_the_workers(harness: Harness) -> None:
    """A property over a remote function."""
    counter = harness.build(Counter, 2, 7)
    assert counter.current == 7 and counter.add(1) == 8 and counter.current == 8


def methods_that_return_the_component_return_the_handle(harness: Harness) -> None:
    """If a method returns the component itself, the caller gets its handle."""
    counter = harness.build(Counter, 2, 1)
    assert plain(counter.itself()) is counter and plain(counter.itself()).add(1) == 2


def every_kind_of_class_can_be_remote(harness: Harness) -> None:
    """Subclasses with and without a constructor, abstract and generic ones, dataclasses, slots, `__new__` and more."""
    group = harness.groups[2]
    for cls, args, want in classes.EXAMPLES:
        made: Any = on(group).create(cls, *args)
        assert isinstance(made, cls), cls
        got = plain(made.tell("x"))
        assert got == want, (cls, got)
        local = cls(*args)
        assert plain(local.tell("x")) == want, cls
    with raises(TypeError, "Shape"):
        on(group).create(cast("Any", classes.Shape))


def any_name_of_an_argument_is_free(harness: Harness) -> None:
    """Arguments with names that the call path uses itself reach the constructor and the method."""
    placed: Any = {"kind": 1, "cls": 2, "args": 3, "name": 4, "instance": 5}
    sent: Any = {"bound_method": 6, "kind": 7, "args": 8, "name": 9, "value": 10}
    group = harness.groups[2]
    named: Any = classes.Named
    for made in (on(group).create(named, **placed), named(**placed, remote_group=group)):
        assert plain(made.method(**sent)) == list(range(1, 11))
        assert submit(made.method, **sent).result() == list(range(1, 11))
        assert explain(made.method, **sent).name == "Named.method"


def components_are_no_data(harness: Harness) -> None:
    """A component that is a dataclass, or a kind of list, is passed on, not taken apart."""
    echo = harness.build(Echo, 2, mesh=TWO)
    for cls, args, _ in classes.EXAMPLES:
        made: Any = on(harness.groups[2]).create(cast("Any", cls), *args)
        assert echo.type_of(made) == cls.__name__, cls
        assert echo.rows({"rows": [1, 2]}) == {"rows": [1, 2]}


def faulty_classes_do_not_spoil_the_group(harness: Harness) -> None:
    """After refused constructions the group takes the next component."""
    with raises(TypeError):
        cast("Any", harness).build(Faulty, 2, 1, 2, 3)
    assert harness.build(Faulty, 2).takes([1]) == [1]


@needs(apart=True)
def constructors_draw_alike_on_every_rank(harness: Harness) -> None:
    """A constructor that seeds Python's, numpy's and torch's generators draws what a process of its own would draw."""
    alone = harness.build(Seeded, 1, 7)
    assert harness.each(4, harness.build(Seeded, 4, 7).drawn()) == [plain(alone.drawn())] * 4


def released_components_are_gone(harness: Harness) -> None:
    """`release` frees the object on every worker; earlier calls run, and later calls are errors."""
    name = f"weights-{id(harness)}"
    holder, other = harness.build(Holder, 2, name), harness.build(Holder, 2, "others")
    assert harness.each(2, other.holds(name)) == [True] * harness.workers(2)
    last = submit(holder.rows, [1, 2])
    release(holder)
    assert last == [1, 2]
    if harness.in_process:
        assert holder.rows([3]) == [3] and other.holds(name)
        return
    assert harness.each(2, other.holds(name)) == [False] * harness.workers(2)
    release(holder)
    with raises(NotInitializedError, "Holder.rows", "was released"):
        holder.rows([3])
    assert other.rows([3]) == [3]


@needs(apart=True)
def releases_are_known_to_other_workers(harness: Harness) -> None:
    """A worker that holds the handle of a released component gets an error as well."""
    holder = harness.build(Holder, 2, "weights")
    keeper = harness.build(Keeper, 1, holder)
    assert keeper.asks() == [1]
    release(holder)
    with raises(NotInitializedError, "Holder.rows", "released"):
        plain(keeper.asks())


CHECKS = (
    without_a_group_an_object_is_just_built,
    both_spellings_build_the_same,
    placement_keywords_go_to_those_who_declare_them,
    handles_are_instances_that_only_call,
    handles_stand_for_one_component,
    instances_are_independent,
    instance_ids_are_taken_once,
    instance_ids_are_free_after_a_release,
    first_classes_live_on_the_first_worker,
    unknown_groups_are_refused,
    meshes_have_to_fit_the_group,
    constructor_arguments_are_checked_on_the_caller,
    signatures_are_the_constructors_own,
    handles_work_where_they_are_passed,
    handles_of_the_own_group_call_the_own_rank,
    components_of_the_own_group_are_built_in_the_process,
    iterators_end_and_lose_nothing,
    iterators_restart_like_the_object,
    properties_are_read_on_the_workers,
    methods_that_return_the_component_return_the_handle,
    every_kind_of_class_can_be_remote,
    any_name_of_an_argument_is_free,
    components_are_no_data,
    faulty_classes_do_not_spoil_the_group,
    constructors_draw_alike_on_every_rank,
    released_components_are_gone,
    releases_are_known_to_other_workers,
)
