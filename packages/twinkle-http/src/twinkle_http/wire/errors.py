"""The errors of the wire."""

from __future__ import annotations

from twinkle_remote.errors import DispatchError, TwinkleError


class WireTypeError(DispatchError, TypeError):
    """A value of a type that cannot be sent; the message names the type, the place and what to use."""


class WireFormatError(TwinkleError, ValueError):
    """Bytes that are no message of this format, or exceed a limit."""
