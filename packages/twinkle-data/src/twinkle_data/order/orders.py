"""Orders of samples: functions from (epoch, position) to an index of the dataset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from twinkle_data.order.permutation import ALGORITHM, Permutation

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Order(Protocol):
    """The order of samples in every epoch: the same on every rank, with access to any position."""

    @property
    def algorithm(self) -> str:
        """Name and version of the rule."""

    @property
    def length(self) -> int:
        """Samples in one epoch."""

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The indices at the given positions of an epoch, each in [0, length - 1]."""


class Sequential:
    """The dataset's own order, in every epoch.

    Args:
        length: Samples in one epoch.
    """

    algorithm = "sequential-v1"

    def __init__(self, length: int) -> None:
        self.length = length

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The positions themselves."""
        return positions


class Shuffled:
    """A new permutation in each epoch.

    Args:
        length: Samples in one epoch.
        seed: In [0, 2**64 - 1].
    """

    algorithm = ALGORITHM

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self._seed = seed
        self._epoch = -1
        self._permutation = Permutation(0, 0)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epoch": -1, "_permutation": Permutation(0, 0)}

    def take(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The permuted positions."""
        if epoch != self._epoch:
            self._permutation, self._epoch = Permutation(self.length, self._seed, epoch), epoch
        return self._permutation.take(positions)
