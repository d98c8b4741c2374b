"""Transfers: what each task of a call reads of its lazy arguments, planned once for all tasks of the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twinkle_mesh import balanced_slice
from twinkle_remote.errors import DispatchError
from twinkle_remote.rows.cut import costs_of
from twinkle_remote.tables.balance import assigned
from twinkle_remote.tables.nodes import Combined, Concat, Input, Join, LazyArgument, Select, StoredRows, leaves
from twinkle_remote.tables.plan import count, part, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.protocol.messages import Outcome, Share
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.tables.nodes import Node, Rows

_MANY = 32  # stored values: about from here on, one more object costs less than naming them in each task


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


class Reading(NamedTuple):
    """One lazy argument as a task reads it.

    Attributes:
        node: The resolved table of its rows.
        cut: The task's rows are cut out of the value, because only that shows how many rows there are.
        listed: Its ranges are lists, as those of rows in another order.
        kept: Payload of the table, if it is large and the same for all tasks; `node` is None then.
        refusal: The type and the text of the error that the call cannot take this argument; None if it can.
    """

    node: Node | None = None
    cut: bool = False
    listed: bool = False
    kept: object = None
    refusal: tuple[type[Exception], str] | None = None


class TaskTransfer(NamedTuple):
    """All lazy arguments as one task reads them.

    Attributes:
        values: One for each of them.
        total: Rows of the split arguments of the call; None if they are not known yet.
        rows: Rows that the task takes of them; None likewise.
        numbers: The numbers of these rows, if they are divided by their costs; None otherwise.
        lists_only: As in the plan, for a value that is cut in the task; so is `balance`.
    """

    values: tuple[Reading, ...]
    total: int | None = None
    rows: int | None = None
    numbers: Rows | None = None
    lists_only: bool = False
    balance: bool | CostRule = False


def plan_transfers(
    plan: TransferPlan, outcomes: Sequence[Outcome], keep: Callable[[object], tuple[object, int]] | None = None
) -> Sequence[TaskTransfer]:
    """Return what each distinct task of a call reads.

    Args:
        plan: The call.
        outcomes: Outcomes of all inputs, without failures.
        keep: Keeps a value for readers in other processes, as `Store.keep` does: a large table that every task reads is
            sent once. None if the tasks are read in this process.
    """
    planner = _Planner(plan, outcomes)
    slots = [planner.readings(argument) for argument in plan.arguments]
    if keep is not None and len(plan.of_share) > 1:
        slots = [[_kept(slot[0], keep)] if len(slot) == 1 else slot for slot in slots]
    transfers = []
    for index, used in enumerate(plan.of_share):
        values = tuple([slots[slot][index if len(slots[slot]) > 1 else 0] for slot in used])
        rows = planner.rows[index] if planner.rows else None
        numbers = None if planner.numbers is None else planner.numbers[index]
        transfers.append(TaskTransfer(values, planner.total, rows, numbers, plan.lists_only, plan.balance))
    return transfers


class _Planner:
    """Plans one lazy argument after the other; all that are split have one number of rows.

    Attributes:
        total: That number; None before it is known.
        rows: Rows of each share; empty before they are known.
        numbers: With costs, the numbers of these rows; None before they are known.
    """

    def __init__(self, plan: TransferPlan, outcomes: Sequence[Outcome]) -> None:
        self._plan, self._outcomes = plan, outcomes
        self.total = plan.total
        self.numbers: Sequence[Rows] | None = plan.numbers
        self.rows: Sequence[int] = () if plan.numbers is None else list(map(len, plan.numbers))
        self._costs_unknown = False  # only the values show how the rows are divided

    def readings(self, argument: LazyArgument) -> Sequence[Reading]:
        """The readings of an argument, one for each share; a single one if it is the same for all shares."""
        try:
            return self._readings(argument, resolve(argument.node, self._outcomes))
        except DispatchError as error:
            return [Reading(refusal=(type(error), str(error)))]

    def _readings(self, argument: LazyArgument, node: Node) -> Sequence[Reading]:
        plan, total = self._plan, count(node)
        listed = argument.listed or (isinstance(node, Concat) and node.order is not None)
        if not argument.split or plan.count is None:
            return [Reading(node, listed=listed)]
        if total is not None and plan.lists_only and not self._is_list(argument.node, node):
            return [Reading(node, listed=listed)]
        if total is None or self._costs_unknown:
            if plan.balance is not False and self.numbers is None:
                self._costs_unknown = True
            return [Reading(node, cut=True, listed=listed)]
        return [Reading(part(node, rows), listed=listed) for rows in self._wanted(node, total, plan.count)]

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
        if self._plan.balance is False:
            parts = [balanced_slice(total, shares, index) for index in range(shares)]
            self.rows = [one.stop - one.start for one in parts]
            return [range(one.start, one.stop) for one in parts]
        if self.numbers is None:
            known = {id(outcome.payload): outcome.costs for outcome in self._outcomes}

            def of_stored(stored: StoredRows) -> Sequence[float] | None:
                payload = stored.payload
                return known[id(payload)] if id(payload) in known else costs_of(payload)

            costs = row_costs(node, of_stored)
            self.numbers = assigned(self._plan.balance, costs, total, shares, self._plan.name)
            self.rows = list(map(len, self.numbers))
        return self.numbers


def row_costs(node: Node, of_stored: Callable[[StoredRows], Sequence[float] | None]) -> Sequence[float] | None:
    """The cost of each row of a resolved table; None if no value has costs.

    Args:
        node: The table; its rows are counted.
        of_stored: Returns the costs of all rows of a stored value; None for 1 each.
    """
    if isinstance(node, StoredRows):
        own = of_stored(node)
        return own if own is None or node.rows is None else [own[row] for row in node.rows]
    if isinstance(node, Join | Select):
        return row_costs(node.of[0] if isinstance(node, Join) else node.of, of_stored)
    if not isinstance(node, Concat):
        return None
    every = [row_costs(one, of_stored) for one in node.of]
    if all(own is None for own in every):
        return None
    costs = [cost for own, one in zip(every, node.of, strict=True) for cost in own or [1.0] * (count(one) or 0)]
    return costs if node.order is None else [costs[row] for row in node.order]


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


def rows_of_share(rows: int, share: Share, total: int | None, name: str) -> slice:
    """The rows of one value that a share takes.

    Args:
        rows: Rows of the value.
        share: The share.
        total: Rows of the other split arguments; None without any.
        name: Class.method, for messages.

    Raises:
        DispatchError: The other arguments have another number of rows.
    """
    check_total(rows, total, name)
    return balanced_slice(rows, share.count, share.index)


def _kept(reading: Reading, keep: Callable[[object], tuple[object, int]]) -> Reading:
    """A table that all tasks read, kept once for all of them if it names many values."""
    if reading.node is None or sum([1 for _ in leaves(reading.node)]) < _MANY:
        return reading
    return reading._replace(node=None, kept=keep(reading.node)[0])
