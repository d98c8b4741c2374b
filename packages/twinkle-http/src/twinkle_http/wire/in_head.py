"""A small message in the head of its request or answer: one write, one read, and no body to wait for.

Head and body of a request are two writes of urllib3, and those of an answer are two of uvicorn. An answer has its
message in the head where its request has.
"""

from __future__ import annotations

import binascii

from twinkle_http.wire.errors import WireFormatError

HEADER = "twinkle-message"
MOST_BYTES = 1024  # of a message; proxies take heads of 4 KiB


def to_header(message: bytes) -> str:
    """A message as the value of the header."""
    return binascii.b2a_base64(message, newline=False).decode("ascii")


def from_header(value: bytes | str) -> bytes:
    """The message that a header holds.

    Raises:
        WireFormatError: It holds none, or a longer one than a head may have.
    """
    try:
        message = binascii.a2b_base64(value, strict_mode=True)
    except ValueError as error:
        raise WireFormatError(f"the header {HEADER} is not base64: {error}") from None
    if len(message) > MOST_BYTES:
        raise WireFormatError(f"a message in a head has at most {MOST_BYTES} bytes, not {len(message)}: send a body")
    return message
