"""Any two workers of a Ray cluster: buckets travel through Ray's object store, which moves them between nodes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import torch
from torch import Tensor

from twinkle_ray.cluster.node_actors import options_on
from twinkle_ray.cluster.remote_once import remote_once
from twinkle_ray.weights.transport.packing import copy_all, slot_views

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_ray.weights.messages import MemoryFile
    from twinkle_ray.weights.planning.buckets import Bucket
    from twinkle_ray.weights.replacement.parameter_buffer import ParameterBuffer
    from twinkle_ray.weights.transport.protocol import Filled

GET_SECONDS = 60.0


class Mailbox:
    """Holds the refs of the sources: Ray would never free a ref that is pickled into an answer."""

    def __init__(self) -> None:
        self._refs: dict[str, Any] = {}

    def put(self, key: str, refs: list[Any]) -> None:
        """Hold a ref; it comes in a list, because Ray would resolve a bare one."""
        self._refs[key] = refs

    def get(self, key: str) -> list[Any]:
        """The ref in a list."""
        return list(self._refs[key])

    def drop(self, keys: Sequence[str]) -> None:
        """Release refs."""
        for key in keys:
            self._refs.pop(key, None)


class RayBlockStore:
    """Puts each bucket into the object store; a handle is a key of the sync's mailbox.

    Args:
        sync: Id of the sync: its ranks share one mailbox.
    """

    def __init__(self, sync: str) -> None:
        if not ray.is_initialized():
            raise RuntimeError("transport='object_store' needs workers of a Ray cluster; 'auto' works on any backend")
        self._name = f"twinkle-weights-{sync}"
        self._mailbox = self._open()
        self._keys: list[str] = []

    def begin(self, occupied: frozenset[MemoryFile] | None) -> None:
        """No tensor lives in the memory of this block store."""

    def put(self, buckets: Sequence[Filled], *, copy: bool) -> Sequence[object]:
        """Copy the blocks into an object, whatever `copy` is."""
        return [self._put(bucket, blocks) for bucket, blocks in buckets]

    def _put(self, bucket: Bucket, blocks: Sequence[Tensor]) -> object:
        packed = np.empty(bucket.nbytes, dtype=np.uint8)
        copy_all(slot_views(bucket, torch.from_numpy(packed)), blocks)
        key = f"{os.getpid()}/{bucket.index}"
        self._call("put", key, [ray.put(packed)])
        self._keys.append(key)
        return key

    def get(self, bucket: Bucket, handle: object) -> Sequence[Tensor]:
        """Views of the object's memory on this node.

        Raises:
            ray.exceptions.RayError: If the source is gone.
        """
        (ref,) = self._call("get", handle)
        packed = ray.get(ref, timeout=GET_SECONDS)
        return slot_views(bucket, torch.from_numpy(_Writable(packed).array()))

    def buffers(self) -> Sequence[ParameterBuffer]:
        """None."""
        return ()

    def clear(self) -> None:
        """Have Ray free the objects."""
        if self._keys:
            self._mailbox.drop.remote(self._keys)
            self._keys = []

    def close(self) -> None:
        """Have Ray free the objects; the mailbox ends with the worker that made it."""
        self.clear()

    def _open(self) -> Any:
        here = ray.get_runtime_context().get_node_id()
        return remote_once(Mailbox).options(name=self._name, get_if_exists=True, **options_on(here, soft=True)).remote()

    def _call(self, method: str, *arguments: object) -> Any:
        """Call the mailbox; if it has ended with the worker that made it, call a new one."""
        try:
            return ray.get(getattr(self._mailbox, method).remote(*arguments), timeout=GET_SECONDS)
        except ray.exceptions.RayActorError:
            self._mailbox = self._open()
            return ray.get(getattr(self._mailbox, method).remote(*arguments), timeout=GET_SECONDS)


class _Writable:
    """A read-only array that claims to be writable: torch warns of a read-only one. No code writes to it."""

    def __init__(self, array: Any) -> None:
        self._array = array
        pointer, _ = array.__array_interface__["data"]
        self.__array_interface__ = {**array.__array_interface__, "data": (pointer, False)}

    def array(self) -> Any:
        return np.asarray(self)
