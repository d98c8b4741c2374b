"""The generators that a client has opened on workers, by their ids there."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from twinkle_http.server.requests.body import RefusedError, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from twinkle_remote.protocol import Call, Component, FunctionSpec

MOST_GENERATORS = 10_000  # of one client
_KEPT = 256  # that are over


@dataclass(slots=True)
class ClientGenerator:
    """A generator on the ranks of a component.

    Attributes:
        component: The component.
        name: Class.method.
        spec: Options of the method.
        key: Its id on the workers.
        left: The ranks on which it is not at its end.
    """

    component: Component
    name: str
    spec: FunctionSpec
    key: str
    left: set[int] = field(default_factory=set)


class ClientGenerators:
    """The generators of one client.

    Args:
        client: Id of the client; no other client can name its generators.
    """

    def __init__(self, client: str) -> None:
        self._client = client
        self._open: dict[str, ClientGenerator] = {}
        self._over: deque[str] = deque()

    def add(self, key: str, call: Call) -> str:
        """Record a generator that a call opens; return its id on the workers.

        Raises:
            RefusedError: The key is taken, or there are too many.
        """
        own = self._own(key)
        if own in self._open:
            raise RefusedError(409, "a generator has this key already", "Repeated")
        if len(self._open) >= MOST_GENERATORS:
            raise RefusedError(429, f"a client has at most {MOST_GENERATORS} generators open", "TooMany")
        self._open[own] = ClientGenerator(call.component, call.name, call.spec, own, set(call.ranks))
        return own

    def _own(self, key: str) -> str:
        return f"{self._client}/{key}"

    def find(self, key: str) -> ClientGenerator:
        """A generator by the key that the client gave it.

        Raises:
            RefusedError: There is none.
        """
        found = self._open.get(self._own(key))
        if found is None:
            raise unknown("generator", key)
        return found

    def ended(self, key: str, ranks: Iterable[int]) -> None:
        """A generator is at its end, or closed, on some ranks. It is kept for a while, for steps that come later.

        Args:
            key: Its id on the workers.
            ranks: The ranks.
        """
        found = self._open.get(key)
        if found is None or not found.left:
            return
        found.left.difference_update(ranks)
        if not found.left:
            self._over.append(key)
            if len(self._over) > _KEPT:
                self._open.pop(self._over.popleft(), None)

    def take_all(self) -> Sequence[ClientGenerator]:
        """All that are open, which are then forgotten."""
        found = [one for one in self._open.values() if one.left]
        self._open.clear()
        return found
