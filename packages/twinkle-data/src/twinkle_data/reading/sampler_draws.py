"""The draws of a sampler from the global generators: alike on all ranks, and again after a resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_data.reading.generators import find_rng_use
from twinkle_data.reading.randomness import Randomness
from twinkle_remote.backends.support import RandomState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
_ENDED = object()


class SamplerDraws:
    """Runs a sampler with global generators of `random`, numpy and torch that are its own.

    A process has one such generator of each library, in another state on each rank. Here they are seeded when a pass
    begins; the program has its own back after each element.

    Args:
        key: Seed of the pass, in [0, 2**64 - 1].

    Attributes:
        drew: The libraries from which the sampler drew for its first element.
    """

    def __init__(self, key: int) -> None:
        self._key = key
        self._randomness = Randomness(key)
        self._state: RandomState | None = None
        self.drew: list[str] = []

    def elements(self, sampler: Iterable[T]) -> Iterator[T]:
        """Iterate over a sampler; one that does not draw for its first element is left alone after it."""
        elements: list[Iterator[T]] = []

        def begin() -> Any:
            elements.append(iter(sampler))
            return next(elements[0], _ENDED)

        first = self._run(begin)
        if first is _ENDED:
            return
        yield first
        while self.drew:
            element = self._run(lambda: next(elements[0], _ENDED))
            if element is _ENDED:
                return
            yield element
        yield from elements[0]

    def _run(self, job: Callable[[], Any]) -> Any:
        with self._randomness.held():
            if self._state is not None:
                return self._drawn(job)
            return self._randomness.once((self._key,), lambda: self._first(job))

    def _first(self, job: Callable[[], Any]) -> Any:
        with find_rng_use() as drew:
            found = self._drawn(job)
        self.drew = drew
        return found

    def _drawn(self, job: Callable[[], Any]) -> Any:
        """Run a job from the states on that the one before has left."""
        if self._state is not None:
            self._state.install()
        found = job()
        self._state = RandomState(accelerators=False).read()
        return found
