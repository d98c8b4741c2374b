"""A call's result before anybody needs it: acts as the value when used, moves worker to worker when passed on."""

from __future__ import annotations

import importlib
import operator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from twinkle_remote.call.collect import combine, how_made, ranks_read
from twinkle_remote.errors import TwinkleError
from twinkle_remote.protocol.messages import HandOver, Itself
from twinkle_remote.values.columns import columns, rebuild

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from twinkle_remote.call.pending_call import Call
    from twinkle_remote.protocol.backend import Reply

R = TypeVar("R")


class Lazy(Generic[R]):
    """The result of a remote call.

    Iterating, indexing, comparing, arithmetic, `len`, `bool`, attributes, numpy's and torch's functions use the value,
    which waits for it and fetches it to this process, once. Passed to another remote call, anywhere inside its
    arguments, it is not fetched here: each worker that needs rows of it reads those from the workers that made them.

    Args:
        call: The call in flight.
        itself: What stands for the component where its method returned it.
    """

    __slots__ = ("__weakref__", "_call", "_itself", "_value")
    __hash__ = None  # type: ignore[assignment]  # equality is the value's, which need not be hashable

    def __init__(self, call: Call, itself: object = None) -> None:
        call.held = True
        self._call = call
        self._itself = itself
        self._value: tuple[R] | None = None

    def result(self, timeout: float | None = None) -> R:
        """The value, collected on this process.

        Args:
            timeout: Seconds to wait, beside the call's own deadline; None adds no limit.

        Raises:
            RemoteCallError: A worker raised; also an instance of what it raised.
            WorkerDiedError: A worker was lost.
            CallTimeoutError: The time is over.
            CollectError: The results do not fit the function's collect.
            NotInitializedError: It was not fetched before a shutdown.
        """
        if self._value is None:
            try:
                self._value = (self._fetch(timeout),)
            except TwinkleError as error:
                raise error.with_traceback(None) from error.__cause__  # the text says where; our frames do not
        return self._value[0]

    def done(self) -> bool:
        """Whether every worker has answered; never waits."""
        return self._value is not None or self._call.done()

    def wait(self, timeout: float | None = None) -> None:
        """Wait for every worker without fetching the value; raises what `result` raises."""
        if self._value is None:
            self._call.wait(timeout)

    def _fetch(self, timeout: float | None) -> R:
        call = self._call
        call.wait(timeout)
        read = ranks_read(call.spec, call.ranks, call.mesh, each=bool(call.each))
        outcomes = [call.outcome(rank) for rank in read]
        value = combine(
            how_made(call.spec, call.ranks),
            [call.fetch(outcome) for outcome in outcomes],
            name=call.name,
            mesh=call.mesh,
            weight=call.spec.weight,
            rows_given=[outcome.rows_given for outcome in outcomes],
            rows=outcomes[0].total if call.spec.uneven == "pad" else None,
            guessed=call.spec.columns is None,
        )
        if value is Itself.ITSELF or (isinstance(value, list) and value and value[0] is Itself.ITSELF):
            value = self._itself
        return cast("R", value)

    def __del__(self) -> None:
        self._call.let_go()

    def __await__(self) -> Generator[Any, None, R]:
        from asyncio import get_running_loop  # half of this package's import time, and few await

        return get_running_loop().run_in_executor(None, self.result).__await__()

    def __repr__(self) -> str:
        state = "fetched" if self._value is not None else self._call.state()
        return f"<Lazy {self._call.name} on {self._call.where()}, {state}>"

    def __str__(self) -> str:
        return str(self.result())

    def __format__(self, spec: str) -> str:
        return format(self.result(), spec)

    def __call__(self) -> R:
        """`result`, in the fewest characters."""
        return self.result()

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return _value, (self.result(),)

    if TYPE_CHECKING:  # what is set below, as the checkers see it

        def __eq__(self, other: object) -> Any: ...
        def __ne__(self, other: object) -> Any: ...
        def __len__(self) -> int: ...
        def __bool__(self) -> bool: ...
        def __int__(self) -> int: ...
        def __float__(self) -> float: ...
        def __index__(self) -> int: ...
        def __round__(self, digits: int = 0) -> Any: ...
        def __reversed__(self) -> Iterator[Any]: ...
        def __contains__(self, item: Any) -> bool: ...
        def __getitem__(self, key: Any) -> Any: ...
        def __neg__(self) -> Any: ...
        def __lt__(self, other: Any) -> Any: ...
        def __le__(self, other: Any) -> Any: ...
        def __gt__(self, other: Any) -> Any: ...
        def __ge__(self, other: Any) -> Any: ...
        def __add__(self, other: Any) -> Any: ...
        def __radd__(self, other: Any) -> Any: ...
        def __sub__(self, other: Any) -> Any: ...
        def __rsub__(self, other: Any) -> Any: ...
        def __mul__(self, other: Any) -> Any: ...
        def __rmul__(self, other: Any) -> Any: ...
        def __truediv__(self, other: Any) -> Any: ...
        def __rtruediv__(self, other: Any) -> Any: ...
        def __floordiv__(self, other: Any) -> Any: ...
        def __mod__(self, other: Any) -> Any: ...
        def __pow__(self, other: Any) -> Any: ...
        def __matmul__(self, other: Any) -> Any: ...

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.result(), name)

    def __iter__(self) -> Iterator[Any]:
        return iter(cast("Any", self.result()))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        numpy = importlib.import_module("numpy")
        if copy is None:
            return numpy.asarray(self.result(), dtype=dtype)
        return numpy.array(self.result(), dtype=dtype, copy=copy)

    def __setitem__(self, key: object, item: object) -> None:
        raise TypeError(f"{self!r} stands for what is on the workers: change a value of your own, x = lazy.result()")

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A torch function of lazy results is that function of their values."""
        return function(*_plain_within(args), **_plain_within(kwargs or {}))


def call_of(lazy: Lazy[Any]) -> Call:
    """The call that makes a lazy result."""
    return lazy._call


def hand_over(lazy: Lazy[Any], offset: int) -> tuple[Sequence[Reply], HandOver]:
    """The replies that a consumer needs, and how it makes the value of their outcomes.

    Args:
        lazy: What is handed over.
        offset: Index at which the replies will stand among the consumer's inputs.
    """
    call = lazy._call
    call.handed_on = True
    each = call.each
    ranks = ranks_read(call.spec, call.ranks, call.mesh, each=each is not False)
    once = None
    if each is None:  # only the outcomes tell whether there is one value for each worker, or one for each data rank
        counted = ranks_read(call.spec, call.ranks, call.mesh, each=False)
        once = None if counted == ranks else tuple(ranks.index(rank) for rank in counted)
    replies = [call.reply(rank) for rank in ranks]
    how = how_made(call.spec, call.ranks)
    padded = call.spec.uneven == "pad"
    return replies, HandOver(offset, offset + len(replies), how, call.mesh, call.spec.weight, padded, once)


def without_lazy(value: Any) -> Any:
    """A value whose lazy parts, at any depth of lists, tuples, dicts and dataclasses, are there; itself without any."""
    if type(value) is Lazy:
        return value.result()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        if Lazy not in set(map(type, value)):
            return value
        fresh = [without_lazy(item) for item in value]
        return fresh if isinstance(value, list) else tuple(fresh)
    parts = columns(value)
    if parts is None:
        return value
    fresh = [without_lazy(part) for part in parts.values()]
    return value if all(new is old for new, old in zip(fresh, parts.values(), strict=True)) else rebuild(value, fresh)


def _value(value: R) -> R:
    return value


def _plain(value: Any) -> Any:
    return value.result() if isinstance(value, Lazy) else value


def _plain_within(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(map(_plain_within, value))
    return {key: _plain_within(item) for key, item in value.items()} if type(value) is dict else _plain(value)


def _forward(function: Any) -> Any:
    def method(self: Lazy[Any], *args: Any) -> Any:
        return function(self.result(), *map(_plain, args))

    return method


def _forward_reflected(function: Any) -> Any:
    def method(self: Lazy[Any], other: Any) -> Any:
        return function(_plain(other), self.result())

    return method


_UNARY = ("neg", "pos", "abs", "index", "invert")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "and_", "or_", "xor")
_OTHER = ("eq", "ne", "lt", "le", "gt", "ge", "contains", "getitem")
for _name in (*_UNARY, *_BINARY, *_OTHER):
    setattr(Lazy, f"__{_name.rstrip('_')}__", _forward(getattr(operator, _name)))
for _name in _BINARY:
    setattr(Lazy, f"__r{_name.rstrip('_')}__", _forward_reflected(getattr(operator, _name)))
for _kind in (len, bool, int, float, complex, round, reversed):
    setattr(Lazy, f"__{_kind.__name__}__", _forward(_kind))
