"""Defaults that `initialize` was given, which calls and components use where they say nothing themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Formatter

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
class LoggingDefaults:
    """The levels and the format that the program's loggers show on its standard streams.

    Attributes:
        levels: Level of each logger that has one below WARNING, or of the root, whose name is "".
        shown: Lowest level that the root's handlers show.
        formatter: Of the first of them; None where it has none of Python's own.
    """

    levels: tuple[tuple[str, int], ...]
    shown: int
    formatter: Formatter | None


@dataclass(frozen=True, slots=True)
class SessionDefaults:
    """The defaults of a session, the same in the program and on its workers.

    Attributes:
        mesh: Mesh of components that were given none and whose group it fits.
        lazy_collect: Whether results are lazy where the function does not say.
        max_in_flight: Calls that one caller may have in flight in one group, at or above 1.
        saving: Where calls that fail are saved; None saves none.
        logging: What workers show of their logs; None for Python's own defaults.
    """

    mesh: DeviceMesh | None = None
    lazy_collect: bool = True
    max_in_flight: int = MAX_IN_FLIGHT
    saving: SavedFailures | None = None
    logging: LoggingDefaults | None = None
