"""The meaning of a decorator's words: one object for each dispatch mode, and one for each collect word.

A mode or a word is added by putting it into its table, in a module that callers and workers import, as the page
"Extending" does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

Ranks: TypeAlias = Sequence[int]
Combine: TypeAlias = Callable[[Sequence[Any], "Sequence[float] | None", str], Any]


@dataclass(slots=True)
class Load:
    """The calls that this process has given to one data rank.

    Attributes:
        in_flight: Those that are not done.
        made: All of them, and a part of one by which equal loads have another order in each worker.
    """

    in_flight: int = 0
    made: float = 0


@dataclass(frozen=True, slots=True)
class DispatchMode:
    """The way in which the arguments of a call go to ranks.

    Attributes:
        divides: The arguments whose rows are divided, where no mark says otherwise: none, lists, or all with rows.
        shares: Takes the called ranks and the mesh; returns the share that each rank gets, and the number of shares.
        each: Every called rank has rows of its own, so each counts; otherwise each data rank counts once.
        called: The data rank that is called, with all its peers: takes the load of each, and the text of the `sticky=`
            argument, or None. Without this function all ranks are called.
    """

    divides: Literal["none", "lists", "rows"]
    shares: Callable[[Ranks, DeviceMesh | None], tuple[Ranks, int]]
    each: bool = False
    called: Callable[[Sequence[Load], str | None], int] | None = None


@dataclass(frozen=True, slots=True)
class CollectWord:
    """The way in which the results of the called ranks become one value.

    Attributes:
        combine: "one" (the first value), "list", "rows" (joined), or a function of the values, their weights by rows
            (None where no rows were divided) and what they are, for messages.
        reads: The ranks whose values count: all, the first, each data rank once, or, where each rank has rows of its
            own, all of them.
    """

    combine: Literal["one", "list", "rows"] | Combine
    reads: Literal["all", "first", "data", "shares"] = "shares"


def one_share_each(ranks: Ranks, mesh: DeviceMesh | None) -> tuple[Ranks, int]:
    """A share for each called rank."""
    return range(len(ranks)), len(ranks)


def share_of_data_rank(ranks: Ranks, mesh: DeviceMesh | None) -> tuple[Ranks, int]:
    """A share for each data rank of the mesh; for each rank without a mesh."""
    if mesh is None or len(ranks) != mesh.world_size:
        return one_share_each(ranks, mesh)
    return _data_ranks(mesh), mesh.data_world_size


@lru_cache(maxsize=64)
def _data_ranks(mesh: DeviceMesh) -> Ranks:
    return [mesh.data_rank(rank) for rank in sorted(mesh.ranks)]


def data_peers(ranks: Ranks, mesh: DeviceMesh | None) -> Sequence[tuple[int, ...]]:
    """The ranks of each data rank, ascending.

    Args:
        ranks: Ranks of a component, ascending.
        mesh: Its mesh; without one, or with another number of ranks, each rank is alone.
    """
    share, count = share_of_data_rank(ranks, mesh)
    peers: list[list[int]] = [[] for _ in range(count)]
    for rank, index in zip(ranks, share, strict=True):
        peers[index].append(rank)
    return list(map(tuple, peers))


def least_busy(loads: Sequence[Load], key: str | None) -> int:
    """The data rank with the fewest calls in flight, of these the one that had the fewest; by a key always the same."""
    if key is not None:
        from zlib import crc32  # the same in every process, as hash() is not

        return crc32(key.encode()) % len(loads)
    return min(range(len(loads)), key=lambda index: (loads[index].in_flight, loads[index].made))


def _reduced(how: str, values: Sequence[Any], weights: Sequence[float] | None, path: str) -> Any:
    from twinkle_remote.rows.reduce import reduce  # few workers reduce

    return reduce(how, values, weights if how == "mean" else None, path)


DISPATCH: dict[str, DispatchMode] = {
    "slice": DispatchMode("lists", one_share_each, each=True),
    "all": DispatchMode("none", one_share_each),
    "slice_dp": DispatchMode("rows", share_of_data_rank),
    "any": DispatchMode("none", one_share_each, called=least_busy),
}
"""The dispatch modes by name."""

COLLECT: dict[str, CollectWord] = {
    "none": CollectWord("list", reads="all"),
    "flatten": CollectWord("rows"),
    "mean": CollectWord(partial(_reduced, "mean")),
    "sum": CollectWord(partial(_reduced, "sum")),
    "first": CollectWord("one", reads="first"),
    "last_pp": CollectWord("list", reads="data"),
}
"""The collect words by name."""
