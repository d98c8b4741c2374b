"""The position that an iterable keeps on itself: all loaders over the object share it, so each has to know its turn."""

from __future__ import annotations

import weakref
from collections.abc import Generator
from contextlib import suppress
from copy import deepcopy
from typing import Any

from twinkle_data.sources.fingerprint import digest

_positions: dict[int, tuple[weakref.ref[Any], StreamPosition]] = {}


class StreamPosition:
    """The position of one iterable, as the loaders of this process know it.

    Attributes:
        reader: The reader of the latest pass.
        samples: The iterator of the latest pass.
    """

    def __init__(self) -> None:
        self.reader: object = None
        self.samples: object = None
        self._front: Any = None
        self._seen: Any = None  # the state when a reader has last looked; None while one reads

    def start(self, dataset: Any, reader: object) -> tuple[Any, bool]:
        """The state at which passes of a dataset start, and whether the dataset stands there.

        Args:
            dataset: The iterable, with `state_dict`.
            reader: The one that begins a pass.
        """
        if self._front is not None and (reader is self.reader or self._is_ours(dataset)):
            return self._front, False
        # The first pass, or the program has moved the dataset.
        self._front = deepcopy(dataset.state_dict())
        return self._front, True

    def reads(self, reader: object) -> None:
        """Note that a reader takes samples: until it looks at the state, the dataset moves."""
        self.reader, self._seen = reader, None

    def looked(self, state: Any) -> None:
        """Note the state after samples."""
        self._seen = state

    def _is_ours(self, dataset: Any) -> bool:
        return self._seen is None or digest(self._seen) == digest(dataset.state_dict())


def position_of(dataset: Any) -> StreamPosition:
    """The position of an iterable; of one that takes no weak reference nothing is kept."""
    held = _positions.get(id(dataset))
    if held is not None and held[0]() is dataset:
        return held[1]
    found, positions, key = StreamPosition(), _positions, id(dataset)

    def forget(gone: object) -> None:
        held = positions.get(key)
        if held is not None and held[0] is gone:
            del positions[key]

    with suppress(TypeError):  # it may take no weak reference: its position is kept nowhere
        positions[key] = weakref.ref(dataset, forget), found
    return found


def check_starts_anew(samples: object, position: StreamPosition, name: str) -> None:
    """Refuse an iterable that gives one iterator to several passes: it goes on where the pass before stopped.

    Args:
        samples: The iterator of this pass.
        position: What is known of the iterable.
        name: Name of its type.

    Raises:
        TypeError: It is that of the pass before, and of a kind that has no start to go back to.
    """
    again = samples is position.samples
    position.samples = samples
    if again and (isinstance(samples, Generator) or type(samples).__module__ in ("builtins", "itertools")):
        raise TypeError(
            f"{name}.__iter__ returns the {type(samples).__name__} of the pass before, which can be iterated only "
            "once, so its first samples would not come again: make a new iterator in __iter__"
        )
