"""The process's global random generators: seeded, saved, and watched at almost no cost."""

from __future__ import annotations

import ctypes
import random
import struct
from functools import cache
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from numpy.random import mtrand

_STATE_WORDS = 624
_SEARCHED = 256  # bytes


class Generator(Protocol):
    """One of the generators that user code draws from without naming it."""

    def seed(self, key: int) -> None:
        """Put it into the state that a key in [0, 2**64 - 1] determines."""

    def mark(self) -> Any:
        """Something that is equal before and after exactly when nothing was drawn between."""

    def save(self) -> Any:
        """Its whole state."""

    def restore(self, state: Any) -> None:
        """Put it back into a saved state."""


class Python:
    """The generator behind the functions of `random`."""

    def __init__(self) -> None:
        shared: Any = getattr(random.random, "__self__", None)
        self._shared = shared
        self._peek = _peek_at(shared) if isinstance(shared, random.Random) and _layout_is_known() else None

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        random.seed(key)

    def mark(self) -> Any:
        """The index of the next word, the first word and a normal deviate in store: a draw changes one of them."""
        if self._peek is None:
            return random.getstate()
        return self._peek.tobytes(), self._shared.gauss_next

    def save(self) -> Any:
        """Its whole state."""
        return random.getstate()

    def restore(self, state: Any) -> None:
        """Put it back into a saved state."""
        random.setstate(state)


class Numpy:
    """The generator behind the functions of `numpy.random`.

    Saving puts another bit generator in its place, which costs one microsecond where reading its state costs
    70. A normal deviate that the caller's next `randn` would have found ready is dropped by that.
    """

    def __init__(self) -> None:
        self._own = np.random.MT19937(0)
        self._current: object = None
        self._first = self._position = memoryview(b"")

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        np.random.seed(key & 0xFFFFFFFF)

    def mark(self) -> Any:
        """The position in the block of words and the first word: a draw changes one of them."""
        current = mtrand.get_bit_generator()
        if current is not self._current:
            if not isinstance(current, np.random.MT19937):
                return repr(current.state)
            address = current.ctypes.state_address
            self._current, self._first = current, _memory(address, 4)
            self._position = _memory(address + 4 * _STATE_WORDS, 4)
        return current, self._position.tobytes(), self._first.tobytes()

    def save(self) -> Any:
        """The caller's bit generator, which another one stands in for until it is restored."""
        callers = mtrand.get_bit_generator()
        mtrand.set_bit_generator(self._own)
        return callers

    def restore(self, state: Any) -> None:
        """Put the caller's bit generator back."""
        mtrand.set_bit_generator(state)


class Torch:
    """torch's generator for the CPU."""

    def __init__(self) -> None:
        import torch

        # torch.manual_seed also seeds accelerators, which costs 300 microseconds.
        self._generator = torch.default_generator
        self._bytes = self._generator.get_state().numel()
        self._engine = _engine_of(self._generator)

    def seed(self, key: int) -> None:
        """Put it into the state that a key determines."""
        self._generator.manual_seed(key >> 1)

    def mark(self) -> Any:
        """The position, the first word and the normal deviates in store: a draw changes one of them; else all of it."""
        if self._engine is not None:
            return self._engine[0].tobytes(), self._engine[1].tobytes()
        state = self._generator.get_state()
        return ctypes.string_at(state.data_ptr(), self._bytes)

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
    return memoryview((ctypes.c_char * size).from_address(address))


def _peek_at(generator: random.Random, words: int = 1) -> memoryview:
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
