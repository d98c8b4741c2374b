"""What a typed program writes, and which types it gets; checked, never run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, assert_type

from twinkle_mesh import DeviceGroup, DeviceMesh
from twinkle_remote import (
    Lazy,
    Replicate,
    WorkerContext,
    current_worker,
    explain,
    get,
    initialize,
    on,
    register_rows,
    remote_class,
    remote_function,
    run_on_workers,
    session,
    shutdown,
    submit,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

T = TypeVar("T")


def dispatcher(
    length: int, i: int, args: tuple[Any, ...], kwargs: dict[str, Any], device_mesh: DeviceMesh | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    return args, kwargs


def collector(results: list[Any], device_mesh: DeviceMesh | None) -> Any:
    return results[0]


@remote_class()
class Actor:
    def __init__(self, size: int, *, name: str = "actor", device_mesh: DeviceMesh | None = None) -> None:
        self.size = size

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int], stop: list[str] | None = None) -> list[int]:
        return rows

    @remote_function("slice_dp", "all", "mean")
    def loss(self, rows: list[int]) -> dict[str, float]:
        return {"loss": float(self.size)}

    @remote_function(dispatch="slice_dp")
    def each(self, rows: list[int]) -> int:
        return len(rows)

    @remote_function(dispatch=dispatcher, collect=collector, timeout=10.0)
    def own(self, text: str) -> str:
        return text

    @remote_function(collect="last_pp", split=("rows",), replicate="stop")
    def last(self, rows: list[int], stop: str) -> list[float]:
        return [1.0]

    @property
    @remote_function(collect="first")
    def version(self) -> int:
        return 1

    @remote_function(collect="first")
    def save(self) -> None: ...

    def plain(self) -> list[int]:
        return self.rows([1])


@remote_class(concurrency=8)
class Asks:
    @remote_function(dispatch="slice_dp", collect="flatten")
    async def rows(self, rows: list[int]) -> list[int]:
        return rows

    @remote_function(collect="sum")
    async def count(self, rows: list[int]) -> int:
        return len(rows)

    @remote_function()
    def unknown(self, rows: list[int]) -> Any:
        return rows

    async def inner(self) -> None:
        assert_type(await self.rows([1]), list[int])


async def asking(asks: Asks) -> None:
    assert_type(await asks.rows([1]), list[int])
    assert_type(await asks.count([1]), int)
    assert_type(get(asks.rows([1])), list[int])
    assert_type(submit(asks.rows, [1]), Lazy[list[int]])
    assert_type(await submit(asks.count, [1]), int)
    submit(asks.unknown, [1]).result()


@remote_class(execute="first")
class Loader(Generic[T]):
    def __init__(self, items: Sequence[T]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Critic(Actor):
    def __init__(self, depth: float) -> None:
        super().__init__(1)


@remote_class()
@dataclass
class Reward:
    scale: float

    @remote_function(collect="sum")
    def score(self, texts: list[str]) -> float:
        return self.scale


@register_rows
class Table:
    def __len__(self) -> int:
        return 1

    def take(self, rows: Sequence[int]) -> Table:
        return self

    @staticmethod
    def concat(values: Sequence[Table]) -> Table:
        return values[0]


def program() -> None:
    initialize("threads", groups=[DeviceGroup("actor", 2, "CPU")], lazy_collect=True, start_timeout=5.0)
    mesh = DeviceMesh.from_sizes(dp_size=2)
    actor = on("actor", mesh).create(Actor, 3, name="x")
    assert_type(actor, Actor)
    assert_type(actor.rows([1], stop=Replicate(["</s>"])), list[int])
    assert_type(actor.loss([1]), dict[str, float])
    assert_type(actor.each([1]), int | list[int])
    assert_type(actor.own("x"), str)
    assert_type(actor.last([1], "x"), list[float])
    assert_type(actor.version, int)
    assert_type(actor.rows(actor.rows([1])), list[int])
    assert_type(on("actor").create(Critic, 0.5), Critic)
    assert_type(on("actor").create(Reward, scale=1.0).score(["a"]), float)
    loader = on("actor").create(Loader[str], ["a"])
    for item in loader:
        assert_type(item, str)
    assert_type(len(loader), int)
    assert_type(Actor(3).size, int)

    lazy = submit(actor.rows, [1], stop=None)
    assert_type(lazy, Lazy[list[int]])
    assert_type(lazy.result(timeout=1.0), list[int])
    assert_type(lazy(), list[int])
    assert_type(submit(actor.each, [1]), Lazy[int | list[int]])
    assert_type(submit(actor.save), Lazy[None])
    assert_type(get(lazy), list[int])
    assert_type(get(actor.rows([1]), timeout=1.0), list[int])
    assert_type(get([lazy]), list[list[int]])
    assert_type(get({"a": lazy}), dict[str, list[int]])
    print(submit(actor.own, "x") // 2, 2**lazy, lazy @ lazy, abs(lazy))
    assert_type(lazy.done(), bool)
    assert_type(lazy.hand_over(), list[int])
    assert_type(actor.rows(lazy.hand_over()), list[int])
    assert_type(submit(actor.rows, lazy.hand_over()), Lazy[list[int]])
    assert_type(get((lazy, submit(actor.loss, [1]))), tuple[list[int], dict[str, float]])
    assert_type(get(actor.rows(actor.rows([1]))), list[int])
    assert_type(len(lazy), int)

    assert_type(current_worker(), WorkerContext)
    assert_type(current_worker().rank, int | None)
    print(explain(actor.rows, [1]), run_on_workers(actor, lambda a: a.size))
    assert_type(register_rows(Table), type[Table])
    shutdown()
    with session("local"):
        pass


def modes(mode: Literal["threads", "ray"], unknown: str, group: DeviceGroup) -> None:
    initialize()
    initialize("local", lazy_collect=False, exchange_timeout=5.0)
    initialize("threads", groups=[group], save_failures="failures", start_timeout=None)
    initialize("ray", groups=(group,), address=None, restart="group", env_allow=["HF_*"])
    initialize("http", address="http://127.0.0.1:8765", token="token", patience=5.0)
    initialize(mode, groups=[group], start_timeout=5.0)
    initialize(unknown, groups=[group], seed=3)
    options: dict[str, Any] = {"workers": 3}
    initialize("mine", groups=[group], **options)
    with session("ray", groups=[group], placement_timeout=5.0), session("http", address="http://127.0.0.1:8765"):
        pass


async def waits(actor: Actor) -> list[int]:
    value = await submit(actor.rows, [1])
    assert_type(value, list[int])
    first, second = await asyncio.gather(submit(actor.rows, [1]), submit(actor.loss, [1]))
    assert_type(first, list[int])
    assert_type(second, dict[str, float])
    return value
