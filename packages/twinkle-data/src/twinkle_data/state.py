"""The state of a loader: what decides the order of samples, and how many of them the loop got.

A state is small, alike on all ranks, and valid on another mesh, with another batch size and other loader processes.
It is made of JSON values, but for the state of a stream, which is kept as the stream gives it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from twinkle_data.errors import StateMismatchError


class Identity(NamedTuple):
    """The arguments that determine the order of samples; two runs have the same order exactly when these are equal."""

    order: str  # name and version of the rule that orders the samples
    seed: int
    length: int | None  # samples in an epoch; None for a stream
    fingerprint: str  # digest of the dataset, or the name that the program gives it


class Position(NamedTuple):
    """A position in a run."""

    epoch: int = 0
    position: int = 0  # samples that were delivered in the epoch, over all data ranks
    source: Any = None  # state of a stream after them; None where there is none, and at the start of an epoch


def write_state(identity: Identity, at: Position) -> dict[str, Any]:
    """The state of a position, as `state_dict` returns it."""
    state = {**identity._asdict(), "epoch": at.epoch, "position": at.position}
    return state if at.source is None else {**state, "source": at.source}


def read_state(state: object, identity: Identity) -> Position:
    """The position in a saved state, which must be one of the same order of samples."""
    check_state(state, identity._asdict())
    assert isinstance(state, Mapping)
    return Position(state["epoch"], state["position"], state.get("source"))


def check_state(state: object, identity: Mapping[str, Any]) -> None:
    """Refuse what is not the state of a position in the same order of samples; the message shows both sides."""
    missing = {*identity, "epoch", "position"} - set(state if isinstance(state, Mapping) else ())
    if missing or not isinstance(state, Mapping):
        raise StateMismatchError(f"a state is what state_dict() returned: {sorted(missing)} missing in {state!r:.80}")
    differ = [f"{name}: saved {state[name]!r}, here {own!r}" for name, own in identity.items() if state[name] != own]
    if differ:
        raise StateMismatchError(
            f"the state was saved over another order of samples ({'; '.join(differ)}): its position means nothing "
            "here. Use the saved dataset, seed and shuffle, or start without the state; where the samples are the "
            'same all the same, give both loaders one fingerprint="..."'
        )
    length = identity.get("length")
    for name in ("epoch", "position"):
        value, limit = state[name], length if name == "position" else None
        if type(value) is not int or value < 0 or (limit is not None and value > limit):
            raise StateMismatchError(f"{name}={value!r} of the state must be a whole number in [0, {limit or '...'}]")
