"""The process's global random generators: seeded, saved, and watched at almost no cost."""

from __future__ import annotations

import ctypes
import random
import struct
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.random import mtrand

if TYPE_CHECKING:
    from collections.abc import Iterable

_STATE_WORDS = 624
_SEARCHED = 256  # bytes


class Spots(NamedTuple):
    """Where a draw leaves its trace, so that looking there is enough.

    Attributes:
        memory: Of these bytes at least one changes with every draw that the attribute does not tell of.
        owner: Has an attribute that changes too, with a draw or because the memory is elsewhere now; None without one.
        attribute: Its name.
    """

    memory: tuple[memoryview, ...]
    owner: Any = None
    attribute: str = ""


class Generator(Protocol):
    """One of the generators that user code draws from without naming it."""

    def seed(self, key: int) -> None:
        """Put it into the state that a key in [0, 2**64 - 1] determines."""

    def spots(self) -> Spots | None:
        """Where to look for draws at almost no cost; None where that is not known."""

    def told(self) -> Any:
        """Its whole state in a form that can be compared, which every draw changes."""

    def save(self) -> Any:
        """Its whole state."""

    def restore(self, state: Any) -> None:
        """Put it back into a saved state."""


class Watch:
    """Tells whether anything was drawn from some generators between two looks.

    Args:
        generators: Which ones.
    """

    def __init__(self, generators: Iterable[Generator]) -> None:
        self._generators = tuple(generators)
        self._find()

    def _find(self) -> None:
        found = [(generator, generator.spots()) for generator in self._generators]
        known = [spots for _, spots in found if spots is not None]
        owned = [spots for spots in known if spots.owner is not None]
        self._memory = [view for spots in known for view in spots.memory]
        self._owners = [spots.owner for spots in owned]
        self._names = [spots.attribute for spots in owned]
        self._held = self._hold()
        self._others = [generator for generator, spots in found if spots is None]

    def _hold(self) -> tuple[Any, ...]:
        return tuple(map(getattr, self._owners, self._names))

    def look(self) -> Any:
        """Something that is equal at two looks exactly when nothing was drawn between them."""
        if self._hold() != self._held:
            self._find()
        return b"".join(self._memory), self._held, self._others and [generator.told() for generator in self._others]


class Python:
    """The generator behind the functions of `random`."""

    def __init__(self) -> None:
        shared: Any = getattr(random.random, "__self__", None)
        known = isinstance(shared, random.Random) and _layout_is_known()
        # The index of the next word and the words in front, of which seeding leaves the first as it was; beside them,
        # a normal deviate in store.
        self._spots = Spots((_peek_at(shared, 2),), shared, "gauss_next") if known else None

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        random.seed(key)

    def spots(self) -> Spots | None:
        """Where to look for draws; None where CPython's layout is another."""
        return self._spots

    def told(self) -> Any:
        """Its whole state."""
        return random.getstate()

    def save(self) -> Any:
        """Its whole state."""
        return random.getstate()

    def restore(self, state: Any) -> None:
        """Put it back into a saved state."""
        random.setstate(state)


class Numpy:
    """The generator behind the functions of `numpy.random`.

    Saving puts another bit generator in its place, which costs one microsecond where reading its state costs
    70. numpy drops a normal deviate in store at that, so it is kept beside.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._shared: Any = mtrand._rand  # whose methods numpy.random's functions are
        self._stored = _stored_normal(self._shared)

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        np.random.seed(key & 0xFFFFFFFF)

    def spots(self) -> Spots | None:
        """Where to look for draws; None with a bit generator other than numpy's default for `numpy.random`."""
        current = mtrand.get_bit_generator()
        if not isinstance(current, np.random.MT19937) or self._stored is None:
            return None
        address = current.ctypes.state_address
        # The words in front and the position in the block of words; a normal deviate in store.
        memory = _memory(address, 8), _memory(address + 4 * _STATE_WORDS, 4), self._stored
        return Spots(memory, self._shared, "_bit_generator")

    def told(self) -> Any:
        """Its whole state."""
        return repr(np.random.get_state(legacy=False))

    def save(self) -> Any:
        """The caller's bit generator, which another one stands in for until it is restored."""
        state = mtrand.get_bit_generator(), self._stored and self._stored.tobytes()
        mtrand.set_bit_generator(self._own)
        return state

    def restore(self, state: Any) -> None:
        """Put the caller's bit generator back."""
        callers, stored = state
        mtrand.set_bit_generator(callers)
        if self._stored is not None:
            self._stored[:] = stored


class Torch:
    """torch's generator for the CPU."""

    def __init__(self) -> None:
        import torch

        # torch.manual_seed also seeds accelerators, which costs 300 microseconds.
        self._generator = torch.default_generator
        memory = _engine_of(self._generator)
        self._spots = None if memory is None else Spots(memory)

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        self._generator.manual_seed(key >> 1)

    def spots(self) -> Spots | None:
        """The position, the first word and the normal deviates in store; None where this torch keeps them elsewhere."""
        return self._spots

    def told(self) -> Any:
        """Its whole state."""
        state = self._generator.get_state()
        return ctypes.string_at(state.data_ptr(), state.numel())

    def save(self) -> Any:
        """Its whole state."""
        return self._generator.get_state()

    def restore(self, state: Any) -> None:
        """Put it back into a saved state."""
        self._generator.set_state(state)


def global_generators() -> list[Generator]:
    """All of them."""
    return list(_all())


@cache
def _all() -> tuple[Generator, ...]:
    return Python(), Numpy(), Torch()


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _peek_at(generator: random.Random, words: int) -> memoryview:
    # CPython's RandomObject: the object's head, the index of the next word, the words.
    return _memory(id(generator) + object.__basicsize__, 4 + 4 * words)


@cache
def _layout_is_known() -> bool:
    """Whether a generator's words lie where CPython has them; elsewhere its whole state is compared."""
    trial = random.Random(7)
    trial.random()
    state = trial.getstate()[1]
    if trial.__sizeof__() < object.__basicsize__ + 4 * (_STATE_WORDS + 1):
        return False
    told = [state[_STATE_WORDS], *state[:_STATE_WORDS]]
    return _peek_at(trial, _STATE_WORDS).tobytes() == struct.pack(f"={_STATE_WORDS + 1}I", *told)


def _stored_normal(shared: Any) -> memoryview | None:
    """Where numpy.random keeps the second of two normal deviates, and whether it has one; None when not found."""
    offset = _stored_offset()
    return None if offset is None else _memory(id(shared) + offset, 16)


@cache
def _stored_offset() -> int | None:
    """Where in a RandomState's object it lies, tried on one of our own."""
    trial = np.random.RandomState(7)
    trial.standard_normal()
    # The published form of the state ends with whether there is one, and the one.
    state: Any = trial.get_state()
    told = struct.pack("=i", state[3]), struct.pack("=d", state[4])
    body = ctypes.string_at(id(trial), trial.__sizeof__())
    found = [at for at in range(0, len(body) - 15, 8) if (body[at : at + 4], body[at + 8 : at + 16]) == told]
    return found[0] if len(found) == 1 else None


def _engine_of(generator: Any) -> tuple[memoryview, memoryview] | None:
    """What a draw changes of torch's generator, where it lies; None where that is not known, and all is compared.

    The one part is the position and the first word, the other the normal deviates in store.
    """
    offset = _engine_offset()
    if offset is None or not _is_engine(generator, offset):
        return None
    return _engine_at(generator, offset)


@cache
def _engine_offset() -> int | None:
    """Where in the C++ object of a generator its engine lies, tried on one of our own."""
    import torch

    trial = torch.Generator().manual_seed(7)
    torch.rand(3, generator=trial)
    found = [offset for offset in range(0, _SEARCHED, 4) if _is_engine(trial, offset)]
    if len(found) != 1:
        return None
    engine = _engine_at(trial, found[0])
    marks = []
    for _ in range(5):  # every second of these is a deviate from the store
        marks.append([part.tobytes() for part in engine])
        torch.randn(1, generator=trial)
    return found[0] if all(old != new for old, new in pairwise(marks)) else None


def _is_engine(generator: Any, offset: int) -> bool:
    """Whether the position and the words there are those that the generator tells."""
    state = generator.get_state()
    # The published form of the state: the seed, how many words are left, whether it is seeded, the next one, the words.
    told = struct.unpack_from(f"=QiiQ{_STATE_WORDS}Q", ctypes.string_at(state.data_ptr(), state.numel()))
    address = _object_of(generator) + offset
    if struct.unpack("=i4xI", ctypes.string_at(address, 12)) != (told[1], told[3]):
        return False
    return struct.unpack(f"={_STATE_WORDS}I", ctypes.string_at(address + 12, 4 * _STATE_WORDS)) == told[4:]


def _engine_at(generator: Any, offset: int) -> tuple[memoryview, memoryview]:
    address = _object_of(generator) + offset
    # Words left (4 bytes), seeded (4), next (4), the words (4 each); 4 bytes to align; a float and a double, or not.
    return _memory(address, 16), _memory(address + 12 + 4 * _STATE_WORDS, 28)


def _object_of(generator: Any) -> int:
    """Address of the C++ object: a Python object of torch's is its head and a pointer."""
    return ctypes.c_size_t.from_address(id(generator) + object.__basicsize__).value
