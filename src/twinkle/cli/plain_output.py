"""Output to terminals that lack characters: lines of pictures become ASCII, other characters become escapes."""

from __future__ import annotations

import codecs
import io
from typing import TextIO

_ERRORS = "twinkle.plain"
_STAND_INS = str.maketrans(
    {"│": "|", "║": "#", "─": "-", "═": "=", "·": ".", "→": ">", "…": ".", **dict.fromkeys("┌┬┐├┼┤└┴┘", "+")}
)


def stand_ins_for_missing_characters(*streams: TextIO) -> None:
    """Have streams write a stand-in for each character that their encoding lacks, where it would raise.

    Args:
        streams: Standard output and standard error; others than text files are left as they are.
    """
    codecs.register_error(_ERRORS, _stand_in)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ERRORS)


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end].translate(_STAND_INS)
    return found.encode("ascii", "backslashreplace").decode("ascii"), error.end
