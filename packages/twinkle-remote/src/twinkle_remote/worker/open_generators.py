"""The generators that calls have opened on a worker, until they end or are closed."""

from __future__ import annotations

from dataclasses import dataclass
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from twinkle_remote.failures.ends import EndedError

if TYPE_CHECKING:
    from asyncio import Lock

    from twinkle_remote.worker.loop_task import LoopTask


@dataclass(slots=True)
class _Opened:
    """One generator.

    Attributes:
        instance: Id of its component.
        generator: The generator, or async generator.
        lock: Steps of an async generator take turns; None for a plain one.
    """

    instance: str
    generator: Any
    lock: Lock | None = None


class OpenGenerators:
    """Generators by the id that their caller gave them."""

    def __init__(self) -> None:
        self._opened: dict[str, _Opened] = {}

    def open(self, instance: str, key: str, generator: object) -> None:
        """Add a generator of a component; none of its body has run."""
        self._opened[key] = _Opened(instance, generator)

    def found(self, key: str) -> Any:
        """A generator; None if it has ended."""
        opened = self._opened.get(key)
        return None if opened is None else opened.generator

    def advance(self, key: str) -> Any:
        """The next item.

        Raises:
            EndedError: It has ended.
        """
        opened = self._opened.get(key)
        if opened is None:
            raise EndedError
        try:
            return next(opened.generator)
        except StopIteration:
            self._opened.pop(key, None)
            raise EndedError from None
        except BaseException:
            self._opened.pop(key, None)
            raise

    async def advance_async(self, key: str, task: LoopTask) -> Any:
        """The next item of an async generator, after the steps that were asked for before.

        Args:
            key: Its id.
            task: The step waits for a place of this task when it is its turn.

        Raises:
            EndedError: It has ended.
        """
        async with self._turn(key):
            opened = self._opened.get(key)
            if opened is None:
                raise EndedError
            try:
                async with task.begun():
                    return await _next_item(opened.generator)
            except BaseException:
                self._opened.pop(key, None)
                raise

    def close(self, key: str) -> None:
        """Close a generator: its `finally` runs. Nothing happens if it has ended."""
        opened = self._opened.pop(key, None)
        if opened is not None:
            opened.generator.close()

    async def close_async(self, key: str) -> None:
        """Close an async generator, after the steps that were asked for before."""
        async with self._turn(key):
            opened = self._opened.pop(key, None)
            if opened is not None:
                await opened.generator.aclose()

    def drop(self, instance: str) -> None:
        """Close the plain generators of a component, and forget the others, which the event loop closes."""
        for key in [key for key, opened in self._opened.items() if opened.instance == instance]:
            opened = self._opened.pop(key)
            if isinstance(opened.generator, GeneratorType):
                opened.generator.close()

    def _turn(self, key: str) -> Lock:
        from asyncio import Lock

        opened = self._opened.get(key)
        if opened is None:
            return Lock()
        opened.lock = opened.lock or Lock()
        return opened.lock


async def _next_item(generator: Any) -> Any:
    try:
        return await anext(generator)
    except StopAsyncIteration:
        raise EndedError from None
