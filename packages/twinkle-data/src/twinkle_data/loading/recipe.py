"""The options of a loader, checked once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twinkle_data.loading.loader_processes.processes import ProcessOptions
from twinkle_data.option_checks import check_function, check_name
from twinkle_data.order.tails import TAILS, Tail, check_batch_size
from twinkle_data.reading.generators import LIBRARIES
from twinkle_data.reading.retries import Policy

if TYPE_CHECKING:
    from collections.abc import Callable

    from twinkle_data.batch import Batch
    from twinkle_data.order.packing import Packing


@dataclass(frozen=True, slots=True)
class Recipe:
    """The options of a loader; `DataLoader` documents each field.

    Attributes:
        data_world_size: Number of data ranks.
        sample_seeds: Libraries whose generators are seeded for each sample; None leaves all of them alone.
    """

    batch_size: int
    data_world_size: int = 1
    shuffle: bool = False
    seed: int = 0
    tail: Tail = "drop"
    collate: Callable[[Batch[Any]], Any] | None = None
    policy: Policy = field(default_factory=Policy)
    processes: ProcessOptions = field(default_factory=ProcessOptions)
    sample_seeds: tuple[str, ...] | None = LIBRARIES
    fingerprint: str | None = None
    packing: Packing | None = None

    def __post_init__(self) -> None:
        if self.tail not in TAILS:
            raise ValueError(f"tail={self.tail!r} is not one of {', '.join(map(repr, TAILS))}")
        if not 0 <= self.seed < 1 << 64:
            raise ValueError(f"seed={self.seed} is outside [0, 2**64 - 1]")
        check_function("collate_fn", self.collate)
        check_name("fingerprint", self.fingerprint)
        check_batch_size(self.batch_size, self.data_world_size)
