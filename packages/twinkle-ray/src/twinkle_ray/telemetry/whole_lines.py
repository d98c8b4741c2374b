"""The lines that a worker prints for the driver: each in one write, its label, and a token after its last line."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

from twinkle_ray.ray_internals import actor_name_marker

_MOST_HELD = 8192  # characters


class WholeLines(io.TextIOBase):
    """Passes each line on in one write, or what there is of it when it is flushed.

    `print` writes a text and its end apart. Ray's streams pass both on at once, and who reads between them sees an
    empty line more.

    Args:
        stream: A text stream of a file.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._held = ""
        self._is_open = False
        self._lock = threading.RLock()  # a signal's handler may print in the middle of a write

    @property
    def encoding(self) -> str:  # type: ignore[override]  # typed as if it could be set
        """The same as of the stream."""
        return str(self._stream.encoding)

    @property
    def errors(self) -> str | None:  # type: ignore[override]  # typed as if it could be set
        """The same as of the stream."""
        errors: str | None = self._stream.errors
        return errors

    def __getattr__(self, name: str) -> Any:
        """Everything else, such as `buffer`, is the stream's; what is written there does not wait."""
        return getattr(self._stream, name)

    def fileno(self) -> int:
        """Descriptor of the file."""
        return int(self._stream.fileno())

    def isatty(self) -> bool:
        """Whether the file is a terminal."""
        return bool(self._stream.isatty())

    def writable(self) -> bool:
        """True."""
        return True

    def write(self, text: str) -> int:
        """Write a text, but for the line that it has begun."""
        with self._lock:
            held = self._held + text
            end = held.rfind("\n") + 1
            if len(held) - end > _MOST_HELD:
                end = len(held)
            self._held = held[end:]
            if end:
                self._pass_on(held[:end])
                self._stream.flush()
        return len(text)

    def flush(self) -> None:
        """Write the line that was begun."""
        with self._lock:
            held, self._held = self._held, ""
            if held:
                self._pass_on(held)
            self._stream.flush()

    def end_line(self) -> None:
        """End the line that was begun, if one was."""
        with self._lock:
            if self._held or self._is_open:
                self.write("\n")

    def _pass_on(self, text: str) -> None:
        self._stream.write(text)
        self._is_open = not text.endswith("\n")


def print_by_line() -> None:
    """Have each line leave this worker in one write."""
    sys.stdout, sys.stderr = WholeLines(sys.stdout), WholeLines(sys.stderr)


def name_output(label: str) -> None:
    """Label the lines that this worker prints from now on."""
    marker = actor_name_marker()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, WholeLines):
            stream.end_line()  # Ray looks for the marker where a line begins
        print(f"{marker}{label}", file=stream, flush=True)


def end_output(token: str) -> None:
    """Print a token after everything that this worker has printed."""
    for stream in (sys.stdout, sys.stderr):
        print(token, file=stream, flush=True)
