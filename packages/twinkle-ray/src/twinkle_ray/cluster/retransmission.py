"""When a connection sends lost packets again: by itself after pauses that double, up to two minutes."""

from __future__ import annotations

import socket
import sys

_TCP_RTO_MAX_MS = 44  # of Linux from 6.15 on; Python has no name for it
_LONGEST_MS = 1000


def send_again_soon(connection: socket.socket) -> bool:
    """Have a connection send lost packets again after a second at most, where the system can.

    A link that was down for some seconds is used again at once then, and signs of life that were lost arrive in time.

    Args:
        connection: A connection by TCP.

    Returns:
        Whether the system can.
    """
    if sys.platform != "linux":
        return False
    try:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_RTO_MAX_MS, _LONGEST_MS)
    except OSError:  # an older kernel
        return False
    return True
