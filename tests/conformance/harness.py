"""The setup by a backend's author, and the marks for the needs of a check."""

from __future__ import annotations

import importlib.util
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from twinkle_remote import Lazy, on

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from twinkle_mesh import DeviceMesh

T = TypeVar("T")
SIZES = (8, 4, 2, 1)


@dataclass(frozen=True)
class Harness:
    """A backend that `initialize` has started.

    Attributes:
        mode: Name of the backend.
        groups: Name of a group by its number of workers; there is one for each of `SIZES`.
        options: Options of `initialize`, apart from the mode and the groups.
        served: The session is a server's: values of known types travel, no functions and no classes; the server's
            session goes on when this one ends.
        in_process: The backend builds components in the calling process, which is their only worker.
        patience: Seconds to wait for a call that never ends; a call that does nothing must end within them.
        folder: A directory that the caller and every worker can write to, where gates are opened.
    """

    mode: str
    groups: Mapping[int, str]
    folder: str
    options: Mapping[str, Any] = field(default_factory=dict)
    served: bool = False
    in_process: bool = False
    patience: float = 0.3

    def workers(self, size: int) -> int:
        """Number of workers of a component on the group of `size`."""
        return 1 if self.in_process else size

    def shares(self, mesh: DeviceMesh) -> int:
        """Number of data ranks of a component with this mesh."""
        return 1 if self.in_process else mesh.data_world_size

    def build(self, cls: Callable[..., T], size: int, *args: Any, mesh: DeviceMesh | None = None, **kwargs: Any) -> T:
        """A component on the group of `size` workers."""
        return on(self.groups[size], mesh).create(cls, *args, **kwargs)

    def each(self, size: int, value: Any) -> list[Any]:
        """A result of collect "none" on the group of `size` as a list; one worker returns the bare value."""
        return [plain(value)] if self.workers(size) == 1 else list(value)

    def takes(self, check: Callable[[Harness], None]) -> bool:
        """Whether a check applies, given where the workers run and which libraries are installed."""
        if (getattr(check, "apart", False) and self.in_process) or (left_out(check) and self.served):
            return False
        return all(importlib.util.find_spec(name) is not None for name in getattr(check, "libraries", ()))


def plain(value: Any) -> Any:
    """The value of a lazy result; any other value as it is."""
    return value.result() if isinstance(value, Lazy) else value


def left_out(check: object) -> str:
    """Why a check does not apply to a served session; empty where it does."""
    return str(getattr(check, "served", ""))


def checks_of(module: Mapping[str, Any]) -> Sequence[Callable[[Harness], None]]:
    """The checks of a module: its public functions of a harness alone, which return nothing."""
    made_here = [one for one in module.values() if getattr(one, "__module__", None) == module["__name__"]]
    wanted = {"harness": "Harness", "return": "None"}
    return [one for one in made_here if getattr(one, "__annotations__", None) == wanted]


def needs(*libraries: str, apart: bool = False, served: str = "") -> Callable[[T], T]:
    """Mark a check that needs libraries, workers outside of the calling process, or a session that is not served.

    Args:
        *libraries: Names of modules.
        apart: The workers are outside of the calling process.
        served: Why a served session, whose components are one worker to their client, does something else.
    """

    def mark(check: T) -> T:
        vars(check).update(libraries=libraries, apart=apart, served=served)
        return check

    return mark


@dataclass
class Caught:
    """The exception of a block.

    Attributes:
        error: The exception, after the block.
    """

    error: BaseException | None = None

    @property
    def text(self) -> str:
        """Its message."""
        return str(self.error)


@contextmanager
def raises(kind: type[BaseException], *parts: str) -> Iterator[Caught]:
    """Assert that a block raises an error of a type, whose message has every part."""
    caught = Caught()
    try:
        yield caught
    except kind as error:
        caught.error = error
    assert caught.error is not None, f"{kind.__name__} was not raised"
    missing = [part for part in parts if part not in caught.text]
    assert not missing, f"{missing} not in the message: {caught.text}"
