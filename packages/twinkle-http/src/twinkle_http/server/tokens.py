"""The sources of tokens: a file that others cannot read, or TWINKLE_TOKEN; never an argument of a command."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VARIABLE = "TWINKLE_TOKEN"
_MOST_BYTES = 1 << 20


class TokenFileError(ValueError):
    """A file of tokens that is not safe, or is none; the message says what to use."""


def token_of_environment() -> str | None:
    """The token in TWINKLE_TOKEN; None without one."""
    return os.environ.get(VARIABLE, "").strip() or None


def tokens_of(path: str | Path) -> str | Mapping[str, str]:
    """The token, or the token of each tenant, of a file.

    Args:
        path: A file with one token, or with a line `tenant token` for each tenant.

    Raises:
        TokenFileError: The file cannot be read, others can read it, or it holds no tokens.
    """
    lines = [line.split() for line in _read(path).splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if len(lines) == 1 and len(lines[0]) == 1:
        return lines[0][0]
    if not lines or any(len(words) != 2 for words in lines) or len({words[0] for words in lines}) < len(lines):
        raise TokenFileError(f"{path} holds one token, or on each line a tenant's name and its token")
    return {words[0]: words[1] for words in lines}


def _read(path: str | Path) -> str:
    try:
        with open(path, encoding="ascii") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise TokenFileError(f"{path} is no regular file")
            if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                mode = stat.S_IMODE(found.st_mode)
                raise TokenFileError(f"{path} has mode {mode:o}, so that others can read it: chmod 600 {path}")
            if found.st_uid not in (os.geteuid(), 0):
                raise TokenFileError(f"{path} belongs to user {found.st_uid}, who can change it: chown it")
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise TokenFileError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TokenFileError(f"{path} holds more than ASCII text") from None
