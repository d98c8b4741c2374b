"""The token that protects this user's clusters: a file that only this user can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def make_token() -> None:
    """Create the token file if there is none, readable by its owner only."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return
    path = _path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    except FileExistsError:
        tighten_token()


def tighten_token() -> None:
    """Make the token file readable by its owner only; Ray makes it readable by everyone."""
    try:
        path = _path()
        if path.stat().st_uid == os.getuid():
            path.chmod(0o600)
    except OSError:  # there is no file, or its mode cannot be changed
        return


def _path() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
