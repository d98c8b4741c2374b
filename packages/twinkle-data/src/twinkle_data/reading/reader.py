"""Reads one step: from a list of indices to the batch that the loop gets."""

from __future__ import annotations

from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any

from twinkle_data.batch import Batch, BatchInfo
from twinkle_data.reading.delivery import Delivery
from twinkle_data.reading.made_orders import MadeOrders
from twinkle_data.sources.parts import set_epoch_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from twinkle_data.order.steps import Step
    from twinkle_data.reading.randomness import Randomness
    from twinkle_data.reading.retries import Sampling

_COLLATE = 0x636F6C6C


class Reader:
    """Reads the samples of a step and makes a batch of them; picklable when its parts are.

    Args:
        sampling: Reads and seeds samples, and handles bad ones.
        collate: Turns a `Batch` into what the loop gets; None keeps the batch.
        randomness: Seeds the generators for samples and for `collate`.
        sharded: The rows are one rank's share.
        some_empty: Some ranks have no rows in the last step of an epoch.
    """

    def __init__(
        self,
        sampling: Sampling,
        collate: Callable[[Batch[Any]], Any] | None,
        randomness: Randomness,
        *,
        sharded: bool = False,
        some_empty: bool = False,
    ) -> None:
        self._sampling = sampling
        self._collate = collate
        self._randomness = randomness
        self._sharded = sharded
        self._collates = collate is not None and not _uses_no_rng(collate)
        self._some_empty = some_empty
        self._epoch: int | None = None

    @property
    def dataset(self) -> Any:
        """The dataset as the user gave it."""
        return self._sampling.source.dataset

    @property
    def user_code(self) -> list[Any]:
        """The objects whose code runs when a step is read."""
        source = self._sampling.source
        return [one for one in (None if source.plain else source.dataset, self._collate) if one is not None]

    def read(self, step: Step) -> Delivery:
        """Read one step.

        Raises:
            BadSampleError: A sample cannot be read, and the policy does not allow to go on.
            ValueError: The last step will leave some ranks without rows, and `collate` cannot take an empty batch: all
                ranks raise it before their first step.
        """
        # Where no user code runs, nothing draws.
        if self._sampling.source.plain and not self._collates:
            return self._read(step)
        with self._randomness.held():
            return self._read(step)

    def _read(self, step: Step) -> Delivery:
        orders = self._begin_epoch(step.epoch) if step.epoch != self._epoch else None
        if self._some_empty:
            check_empty(step, self._collate, self._randomness)
            self._some_empty = False
        rows = self._sampling.read(step.epoch, step.indices)
        made = "" if orders is None else orders.made()
        masked = (*step.fillers, *rows.masked)
        valid = valid_rows(len(rows.samples), masked)
        batch = make_batch(step, own_rows(rows.samples, masked), rows.indices, valid, sharded=self._sharded)
        info = BatchInfo(step.epoch, step.position, rows.indices, valid, step.rows)
        payload = collated(batch, step, self._collate, self._randomness)
        return Delivery(info, payload, tuple(rows.bad), order_digest=made)

    def _begin_epoch(self, epoch: int) -> MadeOrders | None:
        """Tell the datasets of an epoch, and watch the step that follows."""
        self._epoch = epoch
        if self._sampling.source.plain:
            return None
        datasets = self._sampling.source.datasets()
        set_epoch_in(datasets, epoch)
        return MadeOrders(datasets)


def valid_rows(rows: int, masked: Iterable[int]) -> list[bool]:
    """The mask of a batch: False for the given rows."""
    valid = [True] * rows
    for row in masked:
        valid[row] = False
    return valid


def own_rows(samples: list[Any], masked: Sequence[int]) -> list[Any]:
    """The samples, with copies for the masked rows: code that changes its rows would change another one twice.

    Args:
        samples: The samples of a batch; changed in place.
        masked: Rows that may be the same object as another row.
    """
    for row in masked:
        with suppress(Exception):  # it cannot be copied
            samples[row] = deepcopy(samples[row])
    return samples


def collated(batch: Batch[Any], step: Step, collate: Callable[[Batch[Any]], Any] | None, randomness: Randomness) -> Any:
    """Return what the loop gets for a batch; `collate` runs with generators seeded by the seed and the step."""
    if collate is None:
        return batch
    if _uses_no_rng(collate):
        return collate(batch)
    key = _COLLATE, randomness.seed, step.epoch, step.position, *step.indices[:1]
    try:
        return randomness.once(key, partial(collate, batch))
    except StopIteration as error:  # it would end the epoch of a loop (PEP 479)
        raise RuntimeError("collate_fn raised StopIteration") from error


def check_empty(step: Step, collate: Callable[[Batch[Any]], Any] | None, randomness: Randomness) -> None:
    """Check on a rank that has rows that `collate` can take the empty batch that other ranks will have.

    Raises:
        ValueError: It cannot.
    """
    if collate is None:
        return
    none = step._replace(indices=[], fillers=(), packs=None)
    try:
        collated(make_batch(none, [], [], [], sharded=True), none, collate, randomness)
    except Exception as error:  # whatever a function makes of no rows
        raise ValueError(
            'tail="short" leaves some data ranks without rows in the last step of an epoch, and collate_fn cannot take '
            f'an empty batch ({type(error).__name__}: {error}): use tail="pad" or "drop", or one that takes it'
        ) from error


def make_batch(step: Step, samples: list[Any], indices: list[int], valid: list[bool], *, sharded: bool) -> Batch[Any]:
    """The batch of one step; with packs, a batch of batches."""
    if step.packs is None:
        return Batch(samples, epoch=step.epoch, position=step.position, indices=indices, valid=valid, sharded=sharded)
    info: Any = {"epoch": step.epoch, "position": step.position, "sharded": sharded}
    packs = [
        Batch(samples[start:stop], indices=indices[start:stop], valid=valid[start:stop], **info)
        for start, stop in step.packs
    ]
    firsts = [pack.indices[0] if pack else -1 for pack in packs]
    return Batch(packs, indices=firsts, valid=[any(pack.valid) for pack in packs], **info)


def _uses_no_rng(collate: Callable[[Batch[Any]], Any]) -> bool:
    from torch.utils.data import default_collate, default_convert

    return collate is default_collate or collate is default_convert
