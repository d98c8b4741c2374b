"""The position in a run, and the state that saves it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from twinkle_data.errors import StateMismatchError
from twinkle_data.json_values import from_json_values, to_json_values

if TYPE_CHECKING:
    from collections.abc import Iterable

STATE_VERSION: Final = 1


class Cursor(NamedTuple):
    """A position in a run: the epoch, and the number of samples delivered in it."""

    epoch: int = 0
    position: int = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """The arguments that determine the order of samples; two runs have the same order exactly when these are equal.

    Attributes:
        algorithm: Name and version of the rule that orders the samples.
        seed: Seed of the order and of the samples' randomness.
        length: Samples in an epoch; None where the source has no length.
        fingerprint: Digest of the dataset.
    """

    algorithm: str
    seed: int
    length: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class State:
    """The value that `state_dict` saves: an identity, a cursor and the bad samples.

    Attributes:
        identity: The order of samples that the cursor belongs to.
        cursor: The position, at the first sample that was not delivered.
        quarantine: Indices of bad samples, ascending.
        source: State of an iterable source, as the source returns it.
        carried: What passes have changed on a stream that has no state of its own; of another, its state at their end.
        made_order: Digest of an order that the dataset has made in this epoch while it was read; empty without one.
    """

    identity: Identity
    cursor: Cursor
    quarantine: tuple[int, ...] = ()
    source: Any = field(default=None)
    made_order: str = ""
    carried: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The state as plain JSON values."""
        state: dict[str, Any] = {
            "version": STATE_VERSION,
            "algorithm": self.identity.algorithm,
            "seed": self.identity.seed,
            "length": self.identity.length,
            "fingerprint": self.identity.fingerprint,
            "epoch": self.cursor.epoch,
            "position": self.cursor.position,
            "quarantine": list(self.quarantine),
        }
        if self.source is not None:
            state["source"] = to_json_values(self.source)
        if self.made_order:
            state["made_order"] = self.made_order
        if self.carried:
            state["carried"] = to_json_values(self.carried)
        return state


def read_state(state: Mapping[str, Any], own: Identity) -> State:
    """Read a saved state, and check that it belongs to this order of samples.

    Raises:
        StateMismatchError: It does not; the message shows every difference.
    """
    check_mapping(state)
    missing = {"version", "algorithm", "seed", "length", "fingerprint", "epoch", "position"} - set(state)
    if missing:
        raise StateMismatchError(f"this is no loader state: {sorted(missing)} missing, got keys {sorted(state)}")
    if state["version"] != STATE_VERSION:
        raise StateMismatchError(f"the state has version {state['version']}, this release reads {STATE_VERSION}")
    wrong = [
        f"{name}: saved {state[name]!r}, here {here!r}"
        for name, here in (
            ("length", own.length),
            ("fingerprint", own.fingerprint),
            ("seed", own.seed),
            ("algorithm", own.algorithm),
        )
        if state[name] != here
    ]
    if wrong:
        advice = ""
        if state["fingerprint"] != own.fingerprint:
            advice = (
                ". Where the samples are the same (a class was renamed, say, or rows changed their type), give both "
                'loaders a fingerprint="..." that says what the dataset is'
            )
        raise StateMismatchError(
            "the state was saved over another order of samples, so its position means nothing here ("
            + "; ".join(wrong)
            + "); build the loader with the saved dataset, seed and shuffle, or start anew without the state"
            + advice
        )
    epoch, position = state["epoch"], state["position"]
    limit = own.length
    if not is_count(epoch) or not is_count(position) or (limit is not None and position > limit):
        raise StateMismatchError(
            f"epoch={epoch!r} and position={position!r} must be whole numbers, the position in [0, {limit}]"
        )
    carried = from_json_values(state.get("carried", {}))
    check_mapping(carried)
    return State(
        own,
        Cursor(epoch, position),
        tuple(sorted(_quarantine(state))),
        from_json_values(state.get("source")),
        str(state.get("made_order", "")),
        dict(carried),
    )


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the states of all ranks; they may differ only in the bad samples that each rank found.

    Raises:
        StateMismatchError: They were not saved at the same step of the same run.
    """
    gathered = []
    for state in states:
        check_mapping(state)
        gathered.append(dict(state))
    if not gathered:
        raise ValueError("merge_states needs at least one state")
    found = {index for state in gathered for index in _quarantine(state)}
    merged = {**gathered[0], "quarantine": sorted(found)}
    for rank, state in enumerate(gathered):
        if {**state, "quarantine": merged["quarantine"]} != merged:
            differ = sorted(key for key in merged if key != "quarantine" and state.get(key) != merged[key])
            raise StateMismatchError(f"states 0 and {rank} were not saved at the same step: {differ} differ")
    return merged


def check_mapping(state: object) -> None:
    """Check that a value can be a saved state.

    Raises:
        StateMismatchError: It is no mapping.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"a saved state is what state_dict() returned, a dict; got a {type(state).__name__}: {str(state)[:80]}"
        )


def _quarantine(state: Mapping[str, Any]) -> list[int]:
    """The indices of bad samples in a state.

    Raises:
        StateMismatchError: They are no list of whole numbers.
    """
    found = state.get("quarantine", ())
    if not isinstance(found, (list, tuple)) or not all(map(is_count, found)):
        raise StateMismatchError(f"the quarantine of the state must be a list of indices, got {str(found)[:80]}")
    return list(found)


def is_count(value: object) -> bool:
    """Whether it is a whole number of at least 0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
