"""Logging of workers that are processes of their own: as the program has asked for when the session began."""

from __future__ import annotations

import logging
import sys

from twinkle_remote.protocol.defaults import LoggingDefaults

_RAYS = ("ray", "twinkle")


def logging_here() -> LoggingDefaults | None:
    """The logging that this program asks for; None where workers show the same by themselves."""
    root = logging.getLogger()
    handlers = [handler for handler in root.handlers if _is_shown(handler)]
    if not handlers:
        return None
    loggers = logging.root.manager.loggerDict.items()
    known = [(name, found.level) for name, found in loggers if isinstance(found, logging.Logger)]
    lower = [(name, level) for name, level in known if 0 < level < logging.WARNING and not name.startswith(_RAYS)]
    if root.level < logging.WARNING:
        lower.append(("", root.level))
    if not lower:
        return None
    first = handlers[0].formatter
    shown = min(handler.level for handler in handlers)
    return LoggingDefaults(tuple(lower), shown, first if type(first) is logging.Formatter else None)


def _is_shown(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (sys.stdout, sys.stderr, sys.__stderr__)


def take_logging(asked: LoggingDefaults) -> None:
    """Show in this worker what the program asks for; a worker that has handlers of its own keeps them."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setLevel(asked.shown)
        handler.setFormatter(asked.formatter)
        root.addHandler(handler)
    for name, level in asked.levels:
        logging.getLogger(name).setLevel(level)
