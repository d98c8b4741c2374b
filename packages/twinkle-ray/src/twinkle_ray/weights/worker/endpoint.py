"""The worker's functions, which the controller calls one after the other.

Describe, prepare, transfer, wait_transfer, fetch, commit: no weight of the target changes before the commit. After a
sync that worked, `repeat` describes and transfers at once. The state between the calls is kept by process, so that the
ranks of one process share its link.
"""

from __future__ import annotations

import os
import socket
import time
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import torch

from twinkle_ray.weights.errors import WeightSyncError
from twinkle_ray.weights.messages import RankAddress, RankReport, RepeatReport, StepResult, SyncCommand
from twinkle_ray.weights.replacement.replaceable import ReplaceableWeights
from twinkle_ray.weights.replacement.staged import StagedWeights
from twinkle_ray.weights.shards.own_memory import own_memory
from twinkle_ray.weights.transport.packing import checksum
from twinkle_ray.weights.worker.held import HeldVersion
from twinkle_ray.weights.worker.process_state import ProcessState
from twinkle_ray.weights.worker.rank_state import RankState
from twinkle_ray.weights.worker.trained import why_trained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twinkle_ray.weights.messages import Side
    from twinkle_ray.weights.planning.box_plan import Digests
    from twinkle_ray.weights.planning.sync_plan import RankPlan
    from twinkle_ray.weights.rendezvous.session import Session
    from twinkle_ray.weights.rendezvous.store import StoreAddress
    from twinkle_ray.weights.shards.shard import Weights
    from twinkle_ray.weights.shards.specs import LocalShards
    from twinkle_ray.weights.worker.examination import Examined

_PROCESSES: dict[str, ProcessState] = {}
_LOCK = Lock()
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class HasWeights(Protocol):
    """A component that takes part in a weight sync; its method `on_weights(version)` is called if there is one."""

    def weights(self) -> Weights:
        """This rank's tensors by name."""


def describe(instance: HasWeights, address: RankAddress, known: str | None, concurrent: bool = False) -> RankReport:
    """Read the component's weights, and report the shards of this rank.

    Args:
        instance: The component.
        address: Of this rank.
        known: Digest of the specs that the controller has; None without any.
        concurrent: The component works meanwhile: weights that were read before are not read again.

    Raises:
        TypeError: If the component has no method `weights`.
    """
    if not callable(getattr(instance, "weights", None)):
        raise TypeError(
            f"{type(instance).__name__} is the {address.side} of a weight sync and has no method weights(): "
            "it returns a mapping from name to tensor, DTensor or Shard"
        )
    process_state, rank_state = _states(address)
    trained = ""
    facts: dict[str, str] = {}
    if not (concurrent and rank_state.is_read):
        weights = read_weights(instance, rank_state, address.side)
        trained = why_trained(instance, weights) if address.side == "target" else ""
        facts = weights.facts if isinstance(weights, ReplaceableWeights | StagedWeights) else {}
    with rank_state.held.lock:
        rank_state.begin()
    local_shards = rank_state.local_shards
    host = host_identity()
    rank_state.reported = RankReport(
        process=f"{host}/{os.getpid()}",
        host=host,
        node=socket.gethostname(),
        pid=os.getpid(),
        digest=local_shards.digest,
        rank_specs=None if local_shards.digest == known else local_shards.rank_specs,
        device=_device_name(local_shards),
        prepared=None if rank_state.rank_plan is None else rank_state.rank_plan.digest,
        generation=None if process_state.session is None else process_state.session.generation,
        occupied=None if rank_state.swap_state is None else rank_state.swap_state.occupied(),
        goes_back=rank_state.goes_back,
        trained=trained,
        facts=tuple(facts.items()),
    )
    return rank_state.reported


def repeat(
    instance: HasWeights, address: RankAddress, command: SyncCommand, known: str | None, concurrent: bool = False
) -> RepeatReport:
    """Describe this rank, and transfer at once if nothing has changed that the plan stands on.

    The weights of the target stay as they are. No bucket may travel over a link: a rank that has changed sends nothing.

    Args:
        instance: The component.
        address: Of this rank.
        command: The sync.
        known: As for `describe`.
        concurrent: As for `describe`.
    """
    process_state, rank_state = _states(address)
    before = rank_state.reported
    with process_state.watching(address, command.phase("repeat"), begins=True):
        report = describe(instance, address, known, concurrent)
        if before is None or not report.stands_as(before, command.plan_digest):
            return RepeatReport(report, None)
        return RepeatReport(report, transfer(instance, address, command))


def read_weights(instance: HasWeights, rank_state: RankState, side: Side) -> Weights:
    """Read a component's weights, and return them.

    Raises:
        ManifestError: They are copies, and the side is the target.
        UnsettledWeightsError: They are `StagedWeights` with values that the component never took, and the side is the
            source.
    """
    weights = instance.weights()
    if side == "source" and isinstance(weights, StagedWeights):
        weights.check_settled(type(instance).__name__)
    if side == "target" and not rank_state.has_read(weights):
        weights = own_memory(weights, instance.weights)
    rank_state.read(weights, written=side == "target")
    return weights


def serve(instance: HasWeights, address: RankAddress, host: str) -> StoreAddress | None:
    """Open the store on rank 0, where the controller runs in every rank's process; None on the others."""
    if address.rank:
        return None
    with _LOCK:
        process_state = _PROCESSES[address.sync]
    return process_state.serve(host)


def prepare(instance: HasWeights, address: RankAddress, rank_plan: RankPlan | None, session: Session | None) -> None:
    """Take a new plan and join a new session's group; None keeps the present one.

    Raises:
        PeerFailedError: If another process did not join.
    """
    process_state, rank_state = rank_at(address)
    if rank_plan is not None:
        rank_state.forget()
        rank_state.rank_plan = rank_plan
    if session is not None:
        process_state.join(address, session)


def transfer(instance: HasWeights, address: RankAddress, command: SyncCommand) -> StepResult:
    """Send or receive this rank's buckets; the target's weights stay as they are.

    With `command.detached` it returns when everything is packed, and `wait_transfer` waits for the rest.
    """
    began = time.perf_counter()
    process_state, rank_state = rank_at(address)
    with process_state.watching(address, command.phase("transfer")):
        handles = process_state.transfer(address, command)
    return StepResult(dict(handles), dict(rank_state.checksums), time.perf_counter() - began, _nbytes(rank_state))


def wait_transfer(instance: HasWeights, address: RankAddress, command: SyncCommand) -> StepResult:
    """Wait for the background part of `transfer`."""
    began = time.perf_counter()
    process_state, rank_state = rank_at(address)
    with process_state.watching(address, command.phase("wait_transfer")):
        process_state.wait_transfer()
    return StepResult(
        dict(rank_state.handles), dict(rank_state.checksums), time.perf_counter() - began, _nbytes(rank_state)
    )


def fetch(
    instance: HasWeights, address: RankAddress, command: SyncCommand, handles: Mapping[int, object]
) -> StepResult:
    """Get the buckets from block stores, and make checksums of all arrivals where the command asks for them."""
    began = time.perf_counter()
    process_state, rank_state = rank_at(address)
    rank_plan = rank_state.running(command)
    sums: dict[int, int] = {}
    with process_state.watching(address, command.phase("fetch")):
        rank_state.got = dict(handles)
        rank_state.fetch(rank_plan)
        if command.checksum:
            sums = {index: checksum(blocks) for index, blocks in rank_state.arrivals(rank_plan).items()}
    return StepResult({}, sums, time.perf_counter() - began, _nbytes(rank_state))


def digest(instance: HasWeights, address: RankAddress, command: SyncCommand, step: str) -> Digests:
    """Digests of the blocks in this rank's tensors that it sends or could send, or that it has received."""
    process_state, rank_state = rank_at(address)
    with process_state.watching(address, command.phase(step)):
        return rank_state.digests(rank_state.running(command), address.side)


def digest_arrivals(instance: HasWeights, address: RankAddress, command: SyncCommand) -> Digests:
    """Digests of the blocks that have arrived at this target rank, before any of them is written."""
    process_state, rank_state = rank_at(address)
    rank_plan = rank_state.running(command)
    with process_state.watching(address, command.phase("digest_arrivals")):
        rank_state.fetch(rank_plan)
        return rank_state.held_digests(HeldVersion(rank_plan, rank_state.arrivals(rank_plan)))


def examine(instance: HasWeights, address: RankAddress, command: SyncCommand) -> Examined:
    """Digests of the blocks that this source rank sends or could send, and what is wrong with their values."""
    process_state, rank_state = rank_at(address)
    with process_state.watching(address, command.phase("digest")):
        return rank_state.examine(rank_state.running(command))


def commit(instance: HasWeights, address: RankAddress, command: SyncCommand) -> int:
    """Write the arrived blocks into the target's weights.

    `rollback` can restore the old values where the command is reversible. A second call for an attempt that is written
    does nothing.

    Returns:
        The entries whose values have changed, as a set of bits.
    """
    process_state, rank_state = rank_at(address)
    if rank_state.written[0] == command.attempt:
        return rank_state.written[1]
    rank_plan = rank_state.running(command)
    phase = command.phase("commit")  # where nobody can go back, a peer's failure does not end it
    with process_state.watching(address, phase) if command.reversible else process_state.beating(phase):
        rank_state.fetch(rank_plan)
        changed = rank_state.apply(rank_plan, instance.weights, reversible=command.reversible)
        rank_state.synchronize()
        rank_state.written = command.attempt, changed
    return changed


def rollback(instance: HasWeights, address: RankAddress, command: SyncCommand) -> None:
    """Restore the old values after a commit that failed on some rank; does nothing if this rank did not commit."""
    rank_at(address)[1].rollback()


def finalize(instance: HasWeights, address: RankAddress, command: SyncCommand) -> None:
    """Make the commit final, and call the component's `on_weights` if there is one.

    Does nothing on a target rank whose commit has failed, which the controller learns from the commit, nor in a second
    call for one attempt.
    """
    process_state, rank_state = rank_at(address)
    written = address.side == "source" or rank_state.written[0] == command.attempt
    if not written or rank_state.finalized == command.attempt:
        return
    with process_state.beating(command.phase("finalize")):
        rank_state.finalize()
        hook = getattr(instance, "on_weights", None)
        if address.side == "target" and hook is not None:
            hook(command.version)
    rank_state.finalized = command.attempt


def ping(instance: HasWeights, address: RankAddress) -> None:
    """Answer at once: this rank is alive."""


def close(instance: HasWeights, address: RankAddress) -> None:
    """Give back everything that this rank keeps for a sync."""
    with _LOCK:
        process_state = _PROCESSES.get(address.sync)
        rank_state = (
            None if process_state is None else process_state.rank_states.pop((address.side, address.rank), None)
        )
        if process_state is not None and not process_state.rank_states:
            process_state.close()
            del _PROCESSES[address.sync]
    if rank_state is not None:
        rank_state.forget()


def host_identity() -> str:
    """Equal for two processes that can open each other's memory: one kernel, one pid namespace, one user."""
    if not os.path.exists(_BOOT_ID):
        return f"{socket.gethostname()}/{os.getuid()}"
    with open(_BOOT_ID) as file:
        boot = file.read().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


def _states(address: RankAddress) -> tuple[ProcessState, RankState]:
    """The state of this process, and of one of its ranks, made on first use."""
    with _LOCK:
        process_state = _PROCESSES.setdefault(address.sync, ProcessState())
        return process_state, process_state.rank_states.setdefault(
            (address.side, address.rank), RankState(address.sync)
        )


def rank_at(address: RankAddress) -> tuple[ProcessState, RankState]:
    """The state of this process, and of one of its ranks.

    Raises:
        WeightSyncError: There is none.
    """
    process_state = _PROCESSES.get(address.sync)
    rank_state = None if process_state is None else process_state.rank_states.get((address.side, address.rank))
    if process_state is None or rank_state is None:
        raise WeightSyncError(f"{address} has no state for this sync: its worker was started again")
    return process_state, rank_state


def _nbytes(rank_state: RankState) -> int:
    return 0 if rank_state.rank_plan is None else sum(bucket.nbytes for bucket in rank_state.rank_plan.buckets.values())


def _device_name(local_shards: LocalShards) -> str:
    devices = local_shards.devices
    if not devices or all(device.type == "cpu" for device in devices):
        return "cpu"
    if len(devices) > 1:
        return "mixed"
    (device,) = devices
    if device.type != "cuda":
        return str(device)
    return f"cuda:{torch.cuda.get_device_properties(device).uuid}"
