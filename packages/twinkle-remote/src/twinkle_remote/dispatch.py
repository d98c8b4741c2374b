"""From the arguments of a call to what each rank is sent."""

from __future__ import annotations

from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.lazy import Lazy
from twinkle_remote.slots import Encoder, Replicate
from twinkle_remote.split import columns, common_length, lengths, rebuild, splitter_of, take
from twinkle_remote.uneven import settle

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol import HandOver, Reply, Store
    from twinkle_remote.spec import FunctionSpec

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Shares:
    """What a call sends.

    Attributes:
        arguments: Positional and keyword arguments of each distinct share.
        of_rank: For each called rank, the index of its share.
        count: Number of parts that rows are divided into; None when nothing is divided.
        real: Rows that the caller gave, before padding or dropping; None where lazy results tell only later.
        rows: Rows of each share; empty where lazy results tell only later.
        handed: Lazy results among the arguments.
        inputs: The replies that they are made of.
        slots: There are slots among the arguments.
        stored_bytes: Bytes put into the store for this call.
    """

    arguments: list[Arguments]
    of_rank: Sequence[int]
    count: int | None
    real: int | None
    rows: list[int]
    handed: tuple[HandOver, ...]
    inputs: tuple[Reply, ...]
    slots: bool
    stored_bytes: int


def dispatch(
    spec: FunctionSpec,
    names: Sequence[str],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    ranks: Sequence[int],
    mesh: DeviceMesh | None,
    store: Store,
    name: str,
    own_share: bool = False,
) -> Shares:
    """Divide the arguments of one call over the called ranks.

    Args:
        spec: Options of the function.
        names: Parameter names of the positional arguments, for `split`, `replicate` and messages.
        args: Positional arguments; never mutated.
        kwargs: Keyword arguments; never mutated.
        ranks: Ranks that are called, ascending.
        mesh: Mesh of the component, or None.
        store: Where large values are put once.
        name: Class.method, for messages.
        own_share: A batch that is marked `sharded` is the caller's own share already, and goes whole.

    Raises:
        DispatchError: Lengths disagree, the rows do not divide as the function asks, or a generator was given.
    """
    named = [*zip(names, args, strict=True), *kwargs.items()]
    for key, value in named:
        if isinstance(value, GeneratorType):
            raise DispatchError(
                f"{name}: {key} is a generator, which can be neither divided nor sent; pass list({key})"
            )
    encoder = Encoder(store)
    if callable(spec.dispatch):
        given = [spec.dispatch(len(ranks), i, args, dict(kwargs), mesh) for i in range(len(ranks))]
        arguments: list[Arguments] = [(encoder.whole(tuple(a)), encoder.whole(dict(k))) for a, k in given]
        return _shares(encoder, arguments, range(len(ranks)))
    if spec.dispatch == "all":
        return _shares(encoder, [(encoder.whole(args), encoder.whole(kwargs))], [0] * len(ranks))
    of_rank, count = _data_ranks(spec, ranks, mesh)
    mine = [own_share and getattr(value, "sharded", False) is True for _, value in named]
    is_split = [not own and _is_split(spec, key, value) for own, (key, value) in zip(mine, named, strict=True)]
    found = [item for (key, value), split in zip(named, is_split, strict=True) if split for item in _rows(value, key)]
    try:
        real = common_length(found)
    except DispatchError as error:
        raise DispatchError(f"{name}: {error}") from None
    total = None if real is None else settle(spec.uneven, real, count, name)
    arguments, rows = [], []
    for index in range(count):
        part = slice(0, 0) if total is None else balanced_slice(total, count, index)
        cut = _Cut(encoder, part.start, part.stop, real or 0)
        rows.append(part.stop - part.start)
        values = [cut(v) if split else encoder.whole(v) for (_, v), split in zip(named, is_split, strict=True)]
        arguments.append((tuple(values[: len(args)]), dict(zip(kwargs, values[len(args) :], strict=True))))
    if any(mine):
        rows = [len(next(value for own, (_, value) in zip(mine, named, strict=True) if own))] * count
    return _shares(encoder, arguments, of_rank, count, real, [] if total is None and not any(mine) else rows)


def _data_ranks(spec: FunctionSpec, ranks: Sequence[int], mesh: DeviceMesh | None) -> tuple[Sequence[int], int]:
    if spec.dispatch == "slice_dp" and mesh is not None and len(ranks) == mesh.world_size:
        return [mesh.data_rank(rank) for rank in ranks], mesh.data_world_size
    return range(len(ranks)), len(ranks)


def _shares(
    encoder: Encoder,
    arguments: list[Arguments],
    of_rank: Sequence[int],
    count: int | None = None,
    real: int | None = None,
    rows: Sequence[int] = (),
) -> Shares:
    handed, inputs = tuple(encoder.handed), tuple(encoder.inputs)
    return Shares(arguments, of_rank, count, real, list(rows), handed, inputs, encoder.used, encoder.stored_bytes)


def _is_split(spec: FunctionSpec, name: str, value: object) -> bool:
    if isinstance(value, Replicate):
        return False
    if spec.split is not None:
        return name in spec.split
    if name in spec.replicate:
        return False
    return spec.dispatch == "slice_dp" or isinstance(value, list | Lazy)


def _rows(value: object, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, Replicate | Lazy):
        return
    parts = columns(value)
    if parts is None:
        yield from lengths(value, path)
        return
    for key, part in parts.items():
        yield from _rows(part, f"{path}[{key!r}]" if isinstance(value, dict) else f"{path}.{key}")


class _Cut:
    """Cuts rows [start, stop) out of one argument, to any depth of dicts, dataclasses and named tuples."""

    def __init__(self, encoder: Encoder, start: int, stop: int, real: int) -> None:
        self._encoder, self._start, self._stop, self._real = encoder, start, stop, real

    def __call__(self, value: Any) -> Any:
        if isinstance(value, Lazy):
            return self._encoder.lazy(value, split=True)
        splitter = splitter_of(type(value))
        if splitter is not None and splitter.length(value) is not None:
            if self._stop > self._real:
                return self._encoder.whole(self._padded(value, splitter))
            stored = self._encoder.stored(value)
            if stored is not None:
                return stored._replace(start=self._start, stop=self._stop)
            return self._encoder.whole(take(value, self._start, self._stop))
        parts = None if isinstance(value, Replicate) else columns(value)
        if parts is None:
            return self._encoder.whole(value)
        return rebuild(value, [self(part) for part in parts.values()])

    def _padded(self, value: Any, splitter: Any) -> Any:
        """Rows up to the end, then from the beginning again until there are enough."""
        pieces = []
        position = self._start
        while position < self._stop:
            start = position % self._real
            stop = min(self._real, start + self._stop - position)
            pieces.append(splitter.slice(value, start, stop))
            position += stop - start
        return splitter.concat(pieces)
