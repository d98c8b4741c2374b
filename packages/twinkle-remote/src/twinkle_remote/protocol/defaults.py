"""What `initialize` was given that calls and components use where they say nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh

MAX_IN_FLIGHT = 1024


@dataclass(frozen=True, slots=True)
class SavedFailures:
    """Where workers save calls that fail, and what a process needs to run them again.

    Attributes:
        folder: Absolute path, on each worker's node.
        seed: The session's.
        main: Path of the program; empty where it has none.
        argv: Arguments of its command line.
        paths: Directories of the program's modules.
    """

    folder: str
    seed: int
    main: str
    argv: tuple[str, ...]
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """The defaults of a session, the same in the program and on its workers.

    Attributes:
        mesh: Mesh of components that were given none and whose group it fits.
        lazy_collect: Whether results are lazy where the function does not say.
        max_in_flight: Calls that one caller may have in flight in one group, at or above 1.
        saving: Where calls that fail are saved; None saves none.
    """

    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    saving: SavedFailures | None = None
