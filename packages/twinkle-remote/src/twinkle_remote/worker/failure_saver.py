"""Saves the calls that fail on a worker, on request."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twinkle_mesh import DeviceMesh
    from twinkle_remote.protocol.defaults import SavedFailures
    from twinkle_remote.protocol.failure import Failure, WorkerInfo
    from twinkle_remote.protocol.messages import Task

_MOST_FILES = 64  # in one folder


class FailureSaver:
    """The record of a worker's components' constructors, and the files of its calls that failed.

    Args:
        info: The worker.
    """

    def __init__(self, info: WorkerInfo) -> None:
        self._info = info
        self._constructors: dict[str, bytes | Exception] = {}

    def constructs(
        self, instance: str, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], mesh: DeviceMesh | None
    ) -> None:
        """Keep a constructor's arguments, before it can change them."""
        from twinkle_remote.worker.failed_call import pickled  # few sessions save calls

        try:
            self._constructors[instance] = pickled((cls, args, kwargs, mesh))
        except Exception as error:  # whatever the pickling of an argument raises
            self._constructors[instance] = error

    def dropped(self, instance: str) -> None:
        """Forget a component."""
        self._constructors.pop(instance, None)

    def save(
        self, to: SavedFailures, task: Task, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        """Save a call that failed; never raises.

        Returns:
            What became of it, for the error's text.
        """
        try:
            path = self._save(to, task, failure, args, kwargs)
        except Exception as error:  # an argument does not pickle, the disk is full: the call's own error counts
            return f"this call is not saved: {type(error).__name__}: {error}"
        return f"run it again in one process: twinkle replay {path}"

    def _save(
        self, to: SavedFailures, task: Task, failure: Failure, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        from twinkle_remote.worker.failed_call import SUFFIX, FailedCall, pickled, write  # as in `constructs`

        constructor = self._constructors.get(task.instance)
        if not isinstance(constructor, bytes):
            raise constructor or LookupError(
                f"the constructor of {task.name.partition('.')[0]} ran before or elsewhere"
            )
        call = FailedCall(
            name=task.name,
            method=None if task.kind == "create" else task.target,
            group=self._info.group,
            rank=self._info.rank,
            world_size=self._info.size,
            seed=to.seed,
            main=to.main,
            argv=to.argv,
            paths=to.paths,
            type_name=failure.type_name,
            message=failure.message,
            trace=failure.trace,
            constructor=constructor,
            on_loop=task.on_loop,
            arguments=b"" if task.kind == "create" else pickled((args, kwargs)),
        )
        _make_private(to.folder)
        held = [name for name in os.listdir(to.folder) if name.endswith(SUFFIX)]
        if len(held) >= _MOST_FILES:
            raise OSError(f"{to.folder} has {len(held)} saved calls; remove some")
        shown = "".join(letter if letter.isalnum() or letter in "._" else "-" for letter in task.name)
        name = f"{shown}-{self._info.group}-{self._info.rank}-{os.urandom(4).hex()}{SUFFIX}"
        path = os.path.join(to.folder, name)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            with open(descriptor, "wb") as file:
                write(call, file)
        except BaseException:
            os.unlink(path)
            raise
        return path


def _make_private(folder: str) -> None:
    """Make the folder, or check that nobody else can write into it."""
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{folder} belongs to somebody else, or others can write into it: chmod 700 {folder}")
