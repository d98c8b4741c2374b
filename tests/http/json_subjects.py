"""Classes that plain JSON calls, with many kinds of annotations; also a program that serves them."""

from __future__ import annotations

import asyncio
import enum
import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from tests.conformance.subjects.components import Counter
from tests.http.raw import ONE, TWO

from twinkle_http.server import serve as ending
from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function, serve, session

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Point(NamedTuple):
    x: int
    y: float = 0.0


@dataclass
class Sample:
    text: str
    weights: list[float] = field(default_factory=list)
    mood: Mood = Mood.GOOD


@remote_class()
class Adder:
    """Adds."""

    def __init__(self, start: int = 0, *, names: Sequence[str] = ()) -> None:
        self.total = start
        self.names = list(names)

    @remote_function(dispatch="all", collect="first")
    def add(self, amount: int = 1) -> int:
        """Add an amount.

        More of the text.
        """
        self.total += amount
        return self.total

    @remote_function(dispatch="slice", collect="flatten")
    def lengths(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @remote_function(dispatch="all")
    def everywhere(self) -> int:
        return self.total

    @property
    @remote_function(dispatch="all", collect="first")
    def current(self) -> int:
        return self.total

    @remote_function(dispatch="all", collect="first")
    async def later(self, sample: Sample) -> Sample:
        return Sample(sample.text.upper(), [2 * one for one in sample.weights], Mood.BAD)

    @remote_function(dispatch="all", collect="first")
    def fail(self, why: str) -> None:
        raise KeyError(why)

    @remote_function(dispatch="all", collect="first")
    def other(self, adder: Adder) -> int:
        return adder.add(100)

    @remote_function(dispatch="all", collect="first")
    def itself(self) -> Adder:
        return self

    @remote_function(dispatch="all", collect="first", timeout=0.2)
    async def never(self) -> None:
        await asyncio.sleep(60)

    def private(self) -> int:
        return self.total


@remote_class()
class Arrays:
    """Takes and returns arrays and tensors."""

    @remote_function(dispatch="all", collect="first")
    def array(self, values: np.ndarray[Any, np.dtype[np.float32]]) -> np.ndarray[Any, Any]:
        return np.asarray(values * 2)

    @remote_function(dispatch="all", collect="first")
    def tensor(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16) + 1


@remote_class()
class Kinds:
    """Takes and returns values of many kinds."""

    @remote_function(dispatch="all", collect="first")
    def many(
        self,
        mood: Mood,
        point: Point,
        choice: Literal["a", "b"] | None = None,
        table: Mapping[str, float] | None = None,
        *more: int,
        **rest: float,
    ) -> list[Any]:
        return [mood, point, choice, dict(table or {}), sum(more), rest]

    @remote_function(dispatch="all", collect="first")
    def hidden(self, value: complex) -> complex:
        return value

    @remote_function(dispatch="all", collect="first")
    def strange(self) -> object:
        return object()

    @remote_function(dispatch="all", collect="first")
    def floats(self) -> list[float]:
        return [1.5, float("nan"), float("inf")]


@remote_class(execute="first")
class Steps:
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count))


if __name__ == "__main__":
    from tests.http import json_subjects as here

    ending.LAST_UPDATE_SECONDS = 0.2  # at its end, for clients that never read
    logging.basicConfig(level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s")
    classes = [here.Adder, here.Arrays, here.Kinds, here.Steps, Counter]
    groups, tokens = [DeviceGroup("group", 2, "CPU")], {"one": ONE, "two": TWO}
    with session("threads", groups=groups), serve(classes, port=0, token=tokens, max_body=100_000) as server:
        print(server.address, flush=True)
        sys.stdin.read()
