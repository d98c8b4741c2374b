"""StagedWeights: a target's memory that only `on_weights` reads, so that a failed sync restores nothing in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_ray.weights.errors import UnsettledWeightsError
from twinkle_ray.weights.replacement.weights_by_name import W_co, WeightsByName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SHOWN = 4


class StagedWeights(WeightsByName[W_co]):
    """Memory in which weights arrive, and from which a component takes them in `on_weights`.

    A target that computes with other memory, such as an engine's own, returns one object of this class from
    `weights()`, the same at each call. A sync copies into it and puts no old values aside: after one that failed the
    component still computes with the version that it took last, whatever has arrived here.

    As the source of another sync, or for a rank that came back, the memory counts only while it holds what the
    component took last; else the sync is refused.

    Args:
        weights: Each tensor, DTensor or `Shard` by name.
        facts: As those of `ReplaceableWeights`.
    """

    def __init__(self, weights: Mapping[str, W_co], facts: Mapping[str, str] | None = None) -> None:
        super().__init__(weights, facts)
        self._unsettled: frozenset[str] = frozenset()

    @property
    def unsettled(self) -> frozenset[str]:
        """Names whose memory may hold other values than the component took last."""
        return self._unsettled

    def unsettle(self, names: Iterable[str]) -> None:
        """Note that a sync writes these names."""
        self._unsettled = self._unsettled | frozenset(names)

    def settle(self, names: Iterable[str]) -> None:
        """Note that the component takes these names as they are here."""
        self._unsettled = self._unsettled - frozenset(names)

    def check_settled(self, side: str) -> None:
        """Check that the memory holds what the component took last.

        Args:
            side: What reads it, for the message.

        Raises:
            UnsettledWeightsError: A sync has failed after it wrote some of it.
        """
        if self._unsettled:
            names = sorted(self._unsettled)
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            raise UnsettledWeightsError(
                f"{side} has StagedWeights in which a sync that failed left values that the component never took: "
                f"{', '.join(map(repr, names[:_SHOWN]))}{more}; sync into it again first, or take another rank"
            )
