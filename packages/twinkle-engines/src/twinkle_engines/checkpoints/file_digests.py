"""Digests of a checkpoint's files, which tell a file that was damaged from what was written; ranks share the work."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

import torch.distributed as dist

from twinkle_engines.checkpoints.agreed import agreed

if TYPE_CHECKING:
    from pathlib import Path

DIGESTS = "digests.json"
_CHUNK = 1 << 24


def digest(file: Path) -> int:
    """The CRC-32 of a file's bytes."""
    found = 0
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK):
            found = zlib.crc32(chunk, found)
    return found


def write_digests(path: Path) -> None:
    """Write the digests of all files of a folder into it; all ranks call this, once all of it is written.

    Raises:
        Exception: A rank cannot read or write; all ranks raise.
    """
    parts: list[dict[str, int]] = [{} for _ in range(dist.get_world_size())]
    mine: dict[str, int] = {}
    with agreed(f"reading back the checkpoint {path}"):
        mine = {file.name: digest(file) for file in _share(sorted(path.iterdir()))}
    dist.all_gather_object(parts, mine)
    with agreed(f"writing the checkpoint {path}"):
        if dist.get_rank() == 0:
            every = {name: value for part in parts for name, value in part.items()}
            (path / DIGESTS).write_text(json.dumps(every), encoding="utf-8")


def check_digests(path: Path) -> None:
    """Raise where a file of a folder is not as it was written; ranks look at some files each.

    Raises:
        OSError: One cannot be read.
        RuntimeError: One was damaged.
    """
    if not (path / DIGESTS).exists():  # of an older version
        return
    try:
        every = json.loads((path / DIGESTS).read_text(encoding="utf-8"))
    except ValueError as error:
        raise RuntimeError(f"{DIGESTS} cannot be read: {error}") from error
    for file in _share([path / name for name in sorted(every)]):
        if digest(file) != every[file.name]:
            raise RuntimeError(f"{file.name} has other bytes than were written")


def _share(files: list[Path]) -> list[Path]:
    return files[dist.get_rank() :: dist.get_world_size()]
