"""Plans a hand-over: which pieces of which results each task of the next call reads; no value is needed for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twinkle_mesh import balanced_slice
from twinkle_remote.call.even_work import assigned, order_back
from twinkle_remote.call.tables.table_rows import JoinedRows, Operand, RowSpan, TableRows, resolve
from twinkle_remote.call.uneven import rows_to_send
from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.handed import HandedPiece, HandedShare, HandedValue, HandOverPlan
from twinkle_remote.protocol.tables import constants_of, joins, with_all_columns
from twinkle_remote.values.columns import is_numbered
from twinkle_remote.values.costs import costs_of
from twinkle_remote.values.rows import holds_marks, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twinkle_remote.call.tables.table_rows import Reading
    from twinkle_remote.protocol.handed import HandOver
    from twinkle_remote.protocol.messages import Outcome, Share, Task
    from twinkle_remote.protocol.tables import Columns, Rows

_MANY = 32  # pieces: about from here on, one more object costs less than naming them in each task


def plan_hand_over(
    plan: HandOverPlan, outcomes: Sequence[Outcome], keep: Callable[[object], tuple[object, int]] | None = None
) -> Sequence[HandedShare]:
    """Return what each distinct task of a call reads, in time linear in outcomes, tasks and pieces.

    Args:
        plan: The call.
        outcomes: Outcomes of all inputs, without failures.
        keep: Keeps a value for readers in other processes, as `Store.keep` does: many pieces that every task reads are
            sent once. None if the tasks are read in this process.
    """
    planner = _Planner(plan, outcomes)
    slots = [planner.slot(given) for given in plan.handed]
    if keep is not None and len(plan.of_share) > 1:
        slots = [[_listed(slot[0], keep)] if len(slot) == 1 else slot for slot in slots]
    shares = []
    for index, used in enumerate(plan.of_share):
        values = tuple([slots[slot][index if len(slots[slot]) > 1 else 0] for slot in used])
        rows = planner.rows[index] if planner.rows else None
        shares.append(
            HandedShare(values, planner.total, rows, None if planner.numbers is None else planner.numbers[index])
        )
    return shares


def plan_for_task(task: Task, outcomes: Sequence[Outcome]) -> HandedShare:
    """Return what one task reads, where only its worker has the outcomes."""
    count = 1 if task.share is None else task.share.count
    used = (tuple(range(len(task.handed))),) * count
    plan = HandOverPlan(
        task.name,
        task.handed,
        used,
        None if task.share is None else count,
        task.total,
        task.uneven,
        task.lists_only,
        task.balance,
        None if task.numbers is None or task.share is None else _only(task.numbers, task.share),
    )
    return plan_hand_over(plan, outcomes)[0 if task.share is None else task.share.index]


def _only(numbers: Rows, share: Share) -> tuple[Rows, ...]:
    """The rows of each share, of which only those of one are asked for."""
    return tuple([numbers if index == share.index else range(0) for index in range(share.count)])


def rows_of_share(rows: int, share: Share, total: int | None, uneven: str | None, name: str) -> Sequence[slice]:
    """The rows of one value that a share takes; rows that pad it start again from the first.

    Args:
        rows: Rows of the value.
        share: The share.
        total: Rows of the other split arguments; None without any.
        uneven: The function's `uneven` option.
        name: Class.method, for messages.

    Raises:
        DispatchError: The other arguments have another number of rows, or the function does not take this number.
    """
    check_total(rows, total, name)
    part = balanced_slice(rows_to_send(uneven, rows, share.count, name), share.count, share.index)
    out = []
    position: int = part.start
    while position < part.stop:
        start = position % rows
        stop = min(rows, start + part.stop - position)
        out.append(slice(start, stop))
        position += stop - start
    return out


class _Planner:
    """Plans one lazy argument after the other; all that are split have one number of rows.

    Attributes:
        total: That number; None before it is known.
        rows: Rows of each share; empty before they are known.
        numbers: With costs, the numbers of these rows; None before they are known.
    """

    def __init__(self, plan: HandOverPlan, outcomes: Sequence[Outcome]) -> None:
        self._plan = plan
        self._outcomes = outcomes
        self.total = plan.total
        self.rows: Sequence[int] = ()
        self.numbers: Sequence[Rows] | None = plan.numbers
        self._costs_unknown = False  # only the values show how the rows are divided
        if plan.numbers is not None:
            self.rows = list(map(len, plan.numbers))

    def slot(self, given: HandOver) -> Sequence[HandedValue]:
        """The pieces of one lazy argument for each share; a single value if they are the same for all shares."""
        parts = given.parts if given.table is not None else (given,)
        sources = [_counting(part, self._outcomes) for part in parts]
        try:
            return self._table(given, sources) if given.table is not None else self._result(given, sources[0])
        except DispatchError as error:
            return [HandedValue(refusal=(type(error), str(error)))]

    def _result(self, given: HandOver, sources: Sequence[Outcome]) -> Sequence[HandedValue]:
        if not given.split or self._plan.count is None:
            return [_whole(given, sources)]
        payloads = [outcome.payload for outcome in sources]
        if given.how == "list" and not self._costs_unknown:
            table = TableRows((Operand(tuple([RowSpan(i, 0, 1) for i in range(len(sources))])),))
            shares = table.read(self._wanted(table, ()))
            return [HandedValue(tuple([HandedPiece(payloads[i]) for i, _ in share.pieces[0]])) for share in shares]
        found = _rows_of_result(given, sources)
        lists_only = self._plan.lists_only and not all(outcome.is_list for outcome in sources)
        if found is None or lists_only or self._costs_unknown:
            self._note_unknown(split=not lists_only)
            return [_whole(given, sources)._replace(cut=True)]
        shares = found.read(self._wanted(found, [outcome.costs for outcome in sources]))
        scattered = not found.is_in_order()
        return [
            _read(found.operands[0], share.pieces[0], payloads)._replace(order=share.order, scattered=scattered)
            for share in shares
        ]

    def _table(self, given: HandOver, sources: Sequence[Sequence[Outcome]]) -> Sequence[HandedValue]:
        assert given.table is not None
        split = given.split and self._plan.count is not None
        constants = list(constants_of(given.table))
        flat = [outcome for own in sources for outcome in own]
        payloads = [outcome.payload for outcome in flat] + constants
        lists = all(outcome.is_list for outcome in flat) and all(isinstance(value, list) for value in constants)
        table = _resolved(given, sources, constants) if lists or not split or not self._plan.lists_only else None
        if table is None or (split and self._costs_unknown):
            self._note_unknown(split=split)
            values = [_whole(part, own) for part, own in zip(given.parts, sources, strict=True)]
            return [HandedValue(parts=tuple(values), whole=True, cut=split)]
        costs = [outcome.costs for outcome in flat] + list(map(costs_of, constants))
        wanted = self._wanted(table, costs) if split else [range(len(table))]
        scattered = not table.is_in_order()
        if isinstance(table, TableRows):
            shares = [_read_table(table, share, payloads, lists=lists) for share in table.read(wanted)]
            return [share._replace(scattered=scattered) for share in shares]
        of_layers = [
            [_read_table(layer, share, payloads, lists=False) for share in layer.read(wanted)] for layer in table.layers
        ]
        return [
            HandedValue(layers=layers, columns=table.columns, scattered=scattered)
            for layers in zip(*of_layers, strict=True)
        ]

    def _note_unknown(self, *, split: bool) -> None:
        """Note that only a value shows how rows are divided by their costs: all that are split are read whole."""
        if split and self._plan.balance is not False and self.numbers is None:
            self._costs_unknown = True

    def _wanted(self, table: TableRows | JoinedRows, costs: Sequence[Sequence[float] | None]) -> Sequence[Rows]:
        """The rows of a table that each share takes.

        Args:
            table: The table.
            costs: The costs of the rows of each source.
        """
        plan, total = self._plan, len(table)
        assert plan.count is not None
        check_total(total, self.total, plan.name)
        self.total = total
        if plan.balance is not False:
            if self.numbers is None:
                self.numbers = assigned(plan.balance, table.costs(costs), total, plan.count, plan.name)
                self.rows = list(map(len, self.numbers))
            return self.numbers
        wanted = rows_to_send(plan.uneven, total, plan.count, plan.name)
        parts = [balanced_slice(wanted, plan.count, index) for index in range(plan.count)]
        self.rows = [part.stop - part.start for part in parts]
        return [range(part.start, part.stop) for part in parts]


def costs_of_rows(given: HandOver, outcomes: Sequence[Outcome]) -> tuple[bool, Sequence[float] | None]:
    """Whether the rows of a table are known before it is read, and then their costs; None for 1 each.

    Args:
        given: The table.
        outcomes: Those of all its inputs, without failures.
    """
    assert given.table is not None
    constants = list(constants_of(given.table))
    sources = [_counting(part, outcomes) for part in given.parts]
    table = _resolved(given, sources, constants)
    if table is None:
        return False, None
    return True, table.costs([one.costs for own in sources for one in own] + list(map(costs_of, constants)))


def _counting(given: HandOver, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """The outcomes of a lazy result that count."""
    sources = outcomes[given.start : given.stop]
    if given.once is not None and all(outcome.rows_given is None for outcome in sources):
        return [sources[index] for index in given.once]
    return sources


def _resolved(
    given: HandOver, sources: Sequence[Sequence[Outcome]], constants: Sequence[object]
) -> TableRows | JoinedRows | None:
    """The rows of a table; None where only the values show them.

    Args:
        given: The table.
        sources: For each of its parts, the outcomes that count.
        constants: Its plain values.
    """
    assert given.table is not None
    flat = [outcome for own in sources for outcome in own]
    numbered = sum([outcome.numbered and bool(outcome.rows) for outcome in flat]) + sum(map(is_numbered, constants))
    if numbered > (0 if joins(given.table) else 1):  # rows that bear numbers get new ones where tables are joined
        return None
    rows = [RowSpan(len(flat) + i, 0, rows_of(value) or 0) for i, value in enumerate(constants)]
    whole = any(outcome.whole_columns for outcome in flat) or not all(holds_marks(type(value)) for value in constants)
    node = with_all_columns(given.table) if whole else given.table
    table = resolve(node, _of_parts(given.parts, sources), rows)
    return None if numbered and table is not None and not table.is_in_order() else table  # picked ones keep theirs


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


def _whole(given: HandOver, sources: Sequence[Outcome]) -> HandedValue:
    weighs = given.how == "mean" and not given.padded
    windows: Sequence[tuple[int | None, int | None]] = given.windows or [(None, None)] * len(sources)
    return HandedValue(
        tuple([HandedPiece(outcome.payload, *window) for outcome, window in zip(sources, windows, strict=True)]),
        whole=True,
        rows_given=tuple([outcome.weighing if weighs else outcome.rows_given for outcome in sources]),
        rows=sources[0].total if given.padded else None,
        numbers=_numbers(given, sources),
    )


def _numbers(given: HandOver, sources: Sequence[Outcome]) -> tuple[Rows, ...]:
    """The numbers of the rows of each source, where they do not follow each other; empty otherwise."""
    if given.how not in ("rows", "columns") or given.windows is not None:
        return ()
    known = [outcome.numbers for outcome in sources if outcome.numbers is not None]
    return tuple(known) if len(known) == len(sources) else ()


def _listed(value: HandedValue, keep: Callable[[object], tuple[object, int]]) -> HandedValue:
    """The value with its pieces kept once for all tasks, if they are many."""
    if len(value.pieces) < _MANY:
        return value
    return value._replace(pieces=(), listing=keep(value.pieces)[0])


def _read(operand: Operand, pieces: Sequence[tuple[int, Rows]], payloads: Sequence[object]) -> HandedValue:
    """The value of some rows of an operand; of no rows, that of its type."""
    columns = operand.columns
    found = [_piece(payloads[source], rows, columns) for source, rows in pieces]
    return HandedValue(
        tuple(found) or (HandedPiece(payloads[operand.segments[0].source], 0, 0, None, columns),), columns=columns
    )


def _piece(payload: object, rows: Rows, columns: Columns | None) -> HandedPiece:
    if isinstance(rows, range) and rows.step == 1:
        return HandedPiece(payload, rows.start, rows.stop, None, columns)
    return HandedPiece(payload, None, None, rows, columns)


def _read_table(table: TableRows, reading: Reading, payloads: Sequence[object], *, lists: bool) -> HandedValue:
    """The value of some rows of a table; of lists, whose rows have no common type, nothing else is read."""
    if len(table.operands) == 1:
        return _read(table.operands[0], reading.pieces[0], payloads)._replace(order=reading.order)
    if not lists:
        reading = table.typed(reading)
    parts = []
    for operand, pieces in zip(table.operands, reading.pieces, strict=True):
        if pieces or not lists:
            wanted = operand if operand.columns is not None else operand._replace(columns=table.columns)
            parts.append(_read(wanted, pieces, payloads)._replace(columns=operand.columns))
    empty = _read(table.operands[0], (), payloads)
    return HandedValue(parts=tuple(parts) or (empty,), order=reading.order, columns=table.columns)


def _of_parts(parts: Sequence[HandOver], sources: Sequence[Sequence[Outcome]]) -> Sequence[TableRows | None]:
    """The rows of each part of a table, by the places of the outcomes among those of all parts."""
    found: list[TableRows | None] = []
    first = 0
    for part, own in zip(parts, sources, strict=True):
        found.append(_rows_of_result(part, own, first))
        first += len(own)
    return found


def _rows_of_result(given: HandOver, sources: Sequence[Outcome], first: int = 0) -> TableRows | None:
    """The rows of a lazy result in their order; None where only the values show them.

    Args:
        given: How the outcomes are combined.
        sources: Those that count.
        first: Place of the first one among all sources.
    """
    segments, numbers = _segments(given, sources), _numbers(given, sources)
    if segments is None:
        return None
    numbered = any(outcome.numbered for outcome in sources)
    if numbers and (numbered or [stop for _, _, stop in segments] != list(map(len, numbers))):
        return None
    are_dicts = all(outcome.is_dict for outcome in sources)
    own = Operand(tuple([one._replace(source=one.source + first) for one in segments]), is_dict=are_dicts)
    return TableRows((own,), order_back(numbers) if numbers else None)


def _segments(given: HandOver, sources: Sequence[Outcome]) -> tuple[RowSpan, ...] | None:
    """The rows of each source that count; None where only the values show them."""
    known = given.how in ("rows", "one") and all(outcome.rows is not None for outcome in sources)
    if not known or sum([outcome.numbered and bool(outcome.rows) for outcome in sources]) > 1:
        return None
    return _origins(given, sources) if _is_aligned(given, sources) else None


def _is_aligned(given: HandOver, sources: Sequence[Outcome]) -> bool:
    """Whether it is known which rows count: where some were repeated, each source made a row for each."""
    if not given.padded or given.windows is not None or sources[0].total is None:
        return True
    return _given(sources) <= sources[0].total or all(outcome.rows_given in (None, outcome.rows) for outcome in sources)


def _given(sources: Sequence[Outcome]) -> int:
    """Rows that the sources were given; for one where they are not known, those that it made."""
    return sum([(outcome.rows if outcome.rows_given is None else outcome.rows_given) or 0 for outcome in sources])


def _origins(given: HandOver, sources: Sequence[Outcome]) -> tuple[RowSpan, ...]:
    """The rows of each source that count: those of its window, or all but the padding."""
    if given.windows is not None:
        return tuple([RowSpan(index, start, stop) for index, (start, stop) in enumerate(given.windows)])
    total = sources[0].total if given.padded else None
    left = total if total is not None and _given(sources) > total else None
    out = []
    for index, outcome in enumerate(sources):
        rows = outcome.rows or 0
        if left is not None:
            rows = min(rows, left)
            left -= rows
        out.append(RowSpan(index, 0, rows))
    return tuple(out)
