"""Pickles exceptions whose classes only the `__main__` of the driver defines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray import cloudpickle

from twinkle_ray.objects.pickling import reduce_cache
from twinkle_remote.backends.support import reduce_error

if TYPE_CHECKING:
    import io

_CloudPickler: Any = cloudpickle.CloudPickler  # Ray's copy of cloudpickle is not typed


class ErrorByValue(_CloudPickler):  # type: ignore[misc]  # as above
    """Pickles exceptions whose classes are defined in `__main__`: these classes travel by value."""

    def __init__(self, file: io.BytesIO, trusting: bool, inside: frozenset[int]) -> None:
        super().__init__(file, protocol=5)
        self.trusting, self.inside = trusting, inside

    def reducer_override(self, value: Any) -> Any:
        """Reduce an exception; anything else is pickled the usual way."""
        reduced = reduce_error(value, self) or reduce_cache(value)
        return super().reducer_override(value) if reduced is None else reduced
