"""Transfers: what each task of a call reads of its lazy arguments, planned once for all tasks of the call.

It is planned at once if the calls that make them are done, otherwise when they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.backend import InputReplies
from twinkle_remote.tables.balance import divided, row_costs
from twinkle_remote.tables.nodes import Combined, Input, LazyArgument, leaves
from twinkle_remote.tables.plan import count, part, resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twinkle_remote.call.dispatch import Shares
    from twinkle_remote.call.pending import PendingCall
    from twinkle_remote.protocol.messages import Call, Outcome
    from twinkle_remote.protocol.spec import CostRule
    from twinkle_remote.tables.nodes import Node, Rows

    LazyArguments = tuple[InputReplies, Sequence[PendingCall], Sequence["TaskTransfer"] | None]


class TaskTransfer(NamedTuple):
    """All lazy arguments as one task reads them.

    Attributes:
        values: For each of them the resolved table of the task's rows; of one whose rows are not counted, because only
            its value shows them, the whole table. Or the error that the call cannot take it.
        total: Rows of the split arguments of the call; None if they are not known yet.
        rows: Rows that the task takes of them; None likewise.
        numbers: The numbers of these rows, if they are divided by their costs; None otherwise.
        lists_only: As in the plan, for a value that is cut in the task.
    """

    values: tuple[Node | DispatchError, ...]
    total: int | None = None
    rows: int | None = None
    numbers: Rows | None = None
    lists_only: bool = False


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
        """Return what each distinct task of the call reads; all arguments that are split have one number of rows.

        Where only the value of the first one shows its rows, these are divided by their number, whatever they cost.

        Args:
            outcomes: Outcomes of all inputs, without failures.
        """
        total, balance = self.total, self.balance
        numbers: Sequence[Rows] | None = self.numbers
        values: list[Sequence[Node | DispatchError]] = []
        for argument in self.arguments:
            try:
                node = resolve(argument.node, outcomes)
                rows = count(node)
                if rows is None or self._goes_whole(argument, node, outcomes):
                    balance = balance if numbers is not None or not argument.split else False
                    values.append([node])
                    continue
                check_total(rows, total, self.name)
                total = rows
                if numbers is None:
                    costs = None if balance is False else row_costs(node, outcomes)
                    numbers = divided(balance, costs, rows, self.count or 1, self.name)
                values.append([part(node, one) for one in numbers])
            except DispatchError as error:
                values.append([error])
        found = []
        for share, used in enumerate(self.of_share):
            own = None if numbers is None else numbers[share]
            read = tuple([values[index][share if len(values[index]) > 1 else 0] for index in used])
            is_named = balance is not False
            given = None if own is None else len(own)
            found.append(TaskTransfer(read, total, given, own if is_named else None, self.lists_only))
        return found

    def _goes_whole(self, argument: LazyArgument, node: Node, outcomes: Sequence[Outcome]) -> bool:
        """Whether each task reads all rows of an argument, which are counted."""
        if not argument.split or self.count is None:
            return True
        if not self.lists_only:
            return False
        if isinstance(node, Combined):
            return bool(node.how != "list")
        payloads = [leaf.payload for leaf in leaves(argument.node)]
        return not all(outcomes[p.index].is_list if isinstance(p, Input) else type(p) is list for p in payloads)


def lazy_arguments(call: Call, shares: Shares) -> LazyArguments:
    """The lazy arguments of one call.

    Args:
        call: The call.
        shares: Its divided arguments; some are lazy.

    Returns:
        The replies that its tasks wait for, none if all outcomes are known; the calls that make the arguments and are
        not done, or have failed; and what each distinct task reads, None if that is planned when the replies are there.
    """
    encoder, spec = shares.encoder, call.spec
    plan = TransferPlan(
        call.name,
        tuple(encoder.lazies),
        tuple(map(tuple, encoder.of_share)),
        shares.count,
        shares.real,
        spec.dispatch == "slice" and spec.split is None,
        spec.balance if (shares.count or 1) > 1 else False,
        tuple(shares.parts) if shares.balanced else None,
    )
    sources = [source for source in encoder.sources if not source.done() or source.failed()]
    if not sources:
        return InputReplies(), (), plan.transfers([source.outcome(rank) for source, rank in encoder.inputs])
    replies = [source.reply(rank) for source, rank in encoder.inputs]
    read = set(map(id, replies))
    watched = [reply for source in encoder.sources for reply in source.replies() if id(reply) not in read]
    return InputReplies(replies, watched, plan), sources, None


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
