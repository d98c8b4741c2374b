"""Transfers: what each task of a call reads of its lazy arguments, planned once for all tasks of the call.

It is planned at once if the calls that make them are done, otherwise when they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.backend import InputReplies
from twinkle_remote.tables.balance import assigned, row_costs
from twinkle_remote.tables.nodes import Combined, Input, LazyArgument, leaves
from twinkle_remote.tables.plan import count, part, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Call, Outcome
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.tables.nodes import Node, Rows


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """All that is needed, with the outcomes of its inputs, to say what each task of a call reads.

    Attributes:
        name: Class.method of the call, for messages.
        arguments: The lazy results among the arguments.
        of_share: For each distinct task of the call, the indexes of its lazy arguments.
        count: Number of parts that rows are divided into; None when nothing is divided.
        total: Rows of the other split arguments; None without any.
        lists_only: Only lists among the lazy arguments are split (dispatch "slice").
        balance: How rows are divided: False by their number, else by their costs; see `FunctionSpec`.
        numbers: The rows of each share, if the caller has divided them by their costs; None otherwise.
    """

    name: str
    arguments: tuple[LazyArgument, ...]
    of_share: tuple[tuple[int, ...], ...]
    count: int | None = None
    total: int | None = None
    lists_only: bool = False
    balance: bool | CostRule = False
    numbers: tuple[Rows, ...] | None = None

    def transfers(self, outcomes: Sequence[Outcome]) -> Sequence[TaskTransfer]:
        """Return what each distinct task of the call reads.

        Args:
            outcomes: Outcomes of all inputs, without failures.
        """
        planner = _Planner(self, outcomes)
        slots = [planner.readings(argument) for argument in self.arguments]
        transfers = []
        for index, used in enumerate(self.of_share):
            values = tuple([slots[slot][index if len(slots[slot]) > 1 else 0] for slot in used])
            rows = planner.rows[index] if planner.rows else None
            numbers = None if planner.numbers is None else planner.numbers[index]
            transfers.append(TaskTransfer(values, planner.total, rows, numbers, self.lists_only))
        return transfers


class Reading(NamedTuple):
    """One lazy argument as a task reads it.

    Attributes:
        node: The resolved table of its rows.
        cut: The task's rows are cut out of the value, because only that shows how many rows there are.
        refusal: The type and the text of the error that the call cannot take this argument; `node` is None then.
    """

    node: Node | None = None
    cut: bool = False
    refusal: tuple[type[Exception], str] | None = None


class TaskTransfer(NamedTuple):
    """All lazy arguments as one task reads them.

    Attributes:
        values: One for each of them.
        total: Rows of the split arguments of the call; None if they are not known yet.
        rows: Rows that the task takes of them; None likewise.
        numbers: The numbers of these rows, if they are divided by their costs; None otherwise.
        lists_only: As in the plan, for a value that is cut in the task.
    """

    values: tuple[Reading, ...]
    total: int | None = None
    rows: int | None = None
    numbers: Rows | None = None
    lists_only: bool = False


class LazyArguments(NamedTuple):
    """The lazy arguments of one call.

    Attributes:
        inputs: The replies that its tasks wait for; empty if all outcomes are known.
        sources: The calls that make the arguments and are not done, or have failed.
        reads: What each distinct task reads; None if that is planned when the replies are there.
    """

    inputs: InputReplies
    sources: Sequence[PendingCall] = ()
    reads: Sequence[TaskTransfer] | None = None


def lazy_arguments(call: Call, shares: Shares) -> LazyArguments:
    """The lazy arguments of one call.

    Args:
        call: The call.
        shares: Its divided arguments; some are lazy.
    """
    encoder = shares.encoder
    plan = transfer_plan(call, shares)
    sources = [source for source in encoder.sources if not source.done() or source.failed()]
    if not sources:
        outcomes = [source.outcome(rank) for source, rank in encoder.inputs]
        return LazyArguments(InputReplies(), (), plan.transfers(outcomes))
    replies = [source.reply(rank) for source, rank in encoder.inputs]
    read = set(map(id, replies))
    watched = [reply for source in encoder.sources for reply in source.replies() if id(reply) not in read]
    return LazyArguments(InputReplies(replies, watched, plan), sources)


def transfer_plan(call: Call, shares: Shares) -> TransferPlan:
    """The plan that says, with the outcomes, which pieces each task of a call reads.

    Args:
        call: The call.
        shares: Its divided arguments; some are lazy.
    """
    encoder, spec = shares.encoder, call.spec
    return TransferPlan(
        call.name,
        tuple(encoder.lazies),
        tuple(map(tuple, encoder.of_share)),
        shares.count,
        shares.real,
        spec.dispatch == "slice" and spec.split is None,
        spec.balance if (shares.count or 1) > 1 else False,
        tuple(shares.parts) if shares.balanced else None,
    )


class _Planner:
    """Plans one lazy argument after the other; all that are split have one number of rows.

    Attributes:
        total: That number; None before it is known.
        rows: Rows of each share; empty before they are known.
        numbers: With costs, the numbers of these rows; None before they are known, and where only the value of the
            first argument shows its rows: then they are divided by their number.
    """

    def __init__(self, plan: TransferPlan, outcomes: Sequence[Outcome]) -> None:
        self._plan, self._outcomes = plan, outcomes
        self._balance = plan.balance
        self.total = plan.total
        self.numbers: Sequence[Rows] | None = plan.numbers
        self.rows: Sequence[int] = () if plan.numbers is None else list(map(len, plan.numbers))

    def readings(self, argument: LazyArgument) -> Sequence[Reading]:
        """The readings of an argument, one for each share; a single one if it is the same for all shares."""
        try:
            return self._readings(argument, resolve(argument.node, self._outcomes))
        except DispatchError as error:
            return [Reading(refusal=(type(error), str(error)))]

    def _readings(self, argument: LazyArgument, node: Node) -> Sequence[Reading]:
        plan, total = self._plan, count(node)
        whole = total is not None and plan.lists_only and not self._is_list(argument.node, node)
        if not argument.split or plan.count is None or whole:
            return [Reading(node)]
        if total is None:
            if self.numbers is None:
                self._balance = False
            return [Reading(node, cut=True)]
        return [Reading(part(node, rows)) for rows in self._wanted(node, total, plan.count)]

    def _is_list(self, node: Node, resolved: Node) -> bool:
        if isinstance(resolved, Combined):
            return bool(resolved.how == "list")
        payloads = [leaf.payload for leaf in leaves(node)]
        known = (self._outcomes[one.index].is_list if isinstance(one, Input) else type(one) is list for one in payloads)
        return all(known)

    def _wanted(self, node: Node, total: int, shares: int) -> Sequence[Rows]:
        """The rows of a table that each share takes."""
        check_total(total, self.total, self._plan.name)
        self.total = total
        if self._balance is False:
            parts = [balanced_slice(total, shares, index) for index in range(shares)]
            self.rows = [one.stop - one.start for one in parts]
            return [range(one.start, one.stop) for one in parts]
        if self.numbers is None:
            costs = row_costs(node, self._outcomes)
            self.numbers = assigned(self._balance, costs, total, shares, self._plan.name)
            self.rows = list(map(len, self.numbers))
        return self.numbers


def check_total(total: int, known: int | None, name: str) -> None:
    """Refuse another number of rows than that of the other arguments, if that is known.

    Raises:
        DispatchError: They differ.
    """
    if known is not None and total != known:
        raise DispatchError(
            f"{name}: what one call splits must have one number of rows, but a lazy argument has "
            f"{total} and another argument {known}; mark what must go whole with Replicate(value)"
        )
