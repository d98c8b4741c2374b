"""The rows of a plan over lazy results, once it is known how many each outcome has; no value is needed for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import TYPE_CHECKING, NamedTuple

from twinkle_remote.errors import DispatchError
from twinkle_remote.protocol.tables import (
    Concatenated,
    Constant,
    Given,
    Joined,
    Mapped,
    Narrowed,
    Reads,
    Selected,
    Taken,
)
from twinkle_remote.values.picking import rows_within
from twinkle_remote.values.sequences import runs_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from twinkle_remote.protocol.tables import Columns, Node, Rows


class RowSpan(NamedTuple):
    """Rows [start, stop) of one source."""

    source: int
    start: int
    stop: int


class Operand(NamedTuple):
    """The rows of one lazy result, or of one plain value, in a table.

    Attributes:
        segments: At least one, so that the type of the rows is known; a segment may be empty.
        columns: Those that are read; None for all.
        is_dict: They are columns of dicts, of which some need nothing of the others, as labels of a frame are.
    """

    segments: tuple[RowSpan, ...]
    columns: Columns | None = None
    is_dict: bool = False


class Reading(NamedTuple):
    """The pieces that a reader of some rows of a table fetches.

    Attributes:
        pieces: For each operand, each source with its rows, every row once.
        order: For each row that the reader wants, its place among all that it fetches; None where they are the same.
    """

    pieces: tuple[tuple[tuple[int, Rows], ...], ...]
    order: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table as rows of sources.

    Attributes:
        operands: Their rows, one operand after the other, are numbered from 0.
        rows: The table's rows by these numbers; None for all, in order.
        columns: Those that are kept of the joined operands; None for all.
    """

    operands: tuple[Operand, ...]
    rows: Rows | None = None
    columns: Columns | None = None

    def __len__(self) -> int:
        return sum([_length(operand) for operand in self.operands]) if self.rows is None else len(self.rows)

    def is_in_order(self) -> bool:
        """Whether its rows follow each other as those of its operands do."""
        return self.rows is None or (isinstance(self.rows, range) and self.rows.step == 1)

    def costs(self, of_source: Sequence[Sequence[float] | None]) -> Sequence[float] | None:
        """The cost of each row; None if no source has costs.

        Args:
            of_source: The costs of the rows of each source; None for 1 each, as where there is no entry.
        """
        known = dict(enumerate(of_source))
        segments = [segment for operand in self.operands for segment in operand.segments]
        if all(known.get(source) is None for source, _, _ in segments):
            return None
        costs: list[float] = []
        for source, start, stop in segments:
            own = known.get(source)
            costs += [1.0] * (stop - start) if own is None else own[start:stop]
        return costs if self.rows is None else [costs[row] for row in self.rows]

    def read(self, wanted: Sequence[Rows]) -> Sequence[Reading]:
        """The pieces that the reader of each share fetches.

        Args:
            wanted: For each share, the numbers of its rows; those of a range start again from the first one after the
                last.
        """
        flat = [(place, segment) for place, operand in enumerate(self.operands) for segment in operand.segments]
        starts = [0, *accumulate([segment.stop - segment.start for _, segment in flat])]
        readings = []
        for share in wanted:
            numbers = self._numbers(share)
            runs = [numbers] if isinstance(numbers, range) and numbers.step == 1 else list(runs_of(numbers))
            whole = self.rows is None and len(self.operands) == 1 and isinstance(share, range)
            if len(runs) <= 1 or whole:  # pieces in the order of the rows
                cut = chain.from_iterable([_cut(flat, starts, run) for run in runs])
                readings.append(Reading(_grouped(cut, len(self.operands))))
            else:
                readings.append(_scattered(flat, starts, tuple(numbers), len(self.operands)))
        return readings

    def _numbers(self, share: Rows) -> Rows:
        """The rows of a share by the numbers of the operands' rows."""
        if isinstance(share, tuple):
            return share if self.rows is None else tuple([self.rows[one] for one in share])
        total = len(self)
        numbers: Rows = share if share.stop <= total else tuple([number % total for number in share])
        if self.rows is None:
            return numbers
        return self.rows[share.start : share.stop] if numbers is share else tuple([self.rows[one] for one in numbers])

    def typed(self, reading: Reading) -> Reading:
        """A reading with a row of each operand, which its reader needs not, because it shares the type of all rows.

        A column that one operand has stands in the rows of the others too, and numbers take a type that holds all.
        """
        pieces = list(reading.pieces)
        own = [sum([len(rows) for _, rows in of_operand]) for of_operand in pieces]
        order: list[int] = []
        first = extra = 0
        for place, (operand, count) in enumerate(zip(self.operands, own, strict=True)):
            segment = next((one for one in operand.segments if one.start < one.stop), None)
            if not count and segment is not None:
                pieces[place] = ((segment.source, range(segment.start, segment.start + 1)),)
                extra += 1
            order += [first + extra + number for number in range(count)]
            first += count
        if not extra:
            return reading
        wanted = range(first) if reading.order is None else reading.order
        return Reading(tuple(pieces), tuple([order[number] for number in wanted]))


@dataclass(frozen=True, slots=True)
class JoinedRows:
    """Tables whose columns are joined, row next to row.

    Attributes:
        layers: At least one, of equally many rows.
        columns: Those that are kept of the joined ones; None for all.
    """

    layers: tuple[TableRows, ...]
    columns: Columns | None = None

    def __len__(self) -> int:
        return len(self.layers[0])

    def is_in_order(self) -> bool:
        """Whether its rows follow each other as those of its operands do."""
        return all(layer.is_in_order() for layer in self.layers)

    def costs(self, of_source: Sequence[Sequence[float] | None]) -> Sequence[float] | None:
        """The cost of each row: that of the first layer; see `TableRows`."""
        return self.layers[0].costs(of_source)


def resolve(
    node: Node, parts: Sequence[TableRows | None], constants: Sequence[RowSpan]
) -> TableRows | JoinedRows | None:
    """The rows of a plan; None where only the values show them.

    Args:
        node: The plan.
        parts: For each part of its hand-over, the rows of its sources; None where they are not known.
        constants: The segment of each plain value, in the order of `constants_of`.

    Raises:
        RowIndexError: There is no row of a number.
        DispatchError: The columns of tables are joined whose rows differ in number.
    """
    return _resolved(node, parts, iter(constants))


def _resolved(
    node: Node, parts: Sequence[TableRows | None], constants: Iterator[RowSpan]
) -> TableRows | JoinedRows | None:
    if isinstance(node, Given):
        return parts[node.part]
    if isinstance(node, Constant):
        return TableRows((Operand((next(constants),)),))
    if isinstance(node, Concatenated):
        found = [_resolved(part, parts, constants) for part in node.of]
        tables = [table for table in found if isinstance(table, TableRows)]
        return _concatenated(tables) if len(tables) == len(found) else found[0] if len(found) == 1 else None
    if isinstance(node, Joined):
        return _joined([_resolved(part, parts, constants) for part in node.of])
    table = _resolved(node.of, parts, constants)
    if table is None or isinstance(node, Mapped):
        return None
    if isinstance(node, Narrowed):
        return _narrowed(table, node.reads)
    return _taken(table, node) if isinstance(node, Taken) else _selected(table, node)


def _joined(tables: Sequence[TableRows | JoinedRows | None]) -> JoinedRows | None:
    layers: list[TableRows] = []
    for table in tables:
        if table is None or (isinstance(table, JoinedRows) and table.columns is not None):
            return None
        layers += table.layers if isinstance(table, JoinedRows) else (table,)
    counts = list(map(len, layers))
    if len(set(counts)) > 1:
        raise DispatchError(f"join puts row next to row, and the values have {counts} rows: use as many in each")
    return JoinedRows(tuple(layers))


def _taken(table: TableRows | JoinedRows, node: Taken) -> TableRows | JoinedRows:
    if isinstance(table, JoinedRows):
        return replace(table, layers=tuple([_taken_of(layer, node) for layer in table.layers]))
    return _taken_of(table, node)


def _taken_of(table: TableRows, node: Taken) -> TableRows:
    rows = rows_within(node.rows, len(table))
    if table.rows is not None:
        known = table.rows
        follow = isinstance(rows, range) and rows.step == 1
        rows = known[rows[0] : rows[-1] + 1] if rows and follow else tuple([known[row] for row in rows])
    return replace(table, rows=rows)


def _selected(table: TableRows | JoinedRows, node: Selected) -> TableRows | JoinedRows | None:
    kept = table.columns if isinstance(table, JoinedRows) else _columns(table)
    if isinstance(kept, tuple) and not set(kept).issuperset(node.columns):
        return None  # only the type says whether a column that was left out is None, or is not there
    if isinstance(table, JoinedRows):
        return _of_one_layer(table, node) or replace(table, columns=node.columns)
    if len(table.operands) > 1:
        return replace(table, columns=node.columns)
    return replace(table, operands=(table.operands[0]._replace(columns=node.columns),))


def _of_one_layer(table: JoinedRows, node: Selected) -> TableRows | None:
    """The layer that has all columns which are selected, where these need nothing of the others; None if none has."""
    if not all(operand.is_dict for layer in table.layers for operand in layer.operands):
        return None
    for layer in reversed(table.layers):
        own = _strict(_columns(layer))
        if own is None:
            return None
        if set(own).issuperset(node.columns):
            found = _selected(layer, node)
            return found if isinstance(found, TableRows) else None
        if not set(own).isdisjoint(node.columns):
            return None
    return None


def _narrowed(table: TableRows | JoinedRows, reads: Reads) -> TableRows | JoinedRows:
    """The table in the columns that a function reads: of joined ones, each is read once, where the last of it is."""
    if isinstance(table, TableRows):
        return _narrowed_rows(table, reads)
    if table.columns is not None:  # what the layers lack is told by the columns of them all
        return replace(table, columns=replace(reads, within=_strict(table.columns)))
    layers: list[TableRows] = []
    later: set[Hashable] = set()
    gone: list[Hashable] = []
    for place, layer in reversed(list(enumerate(table.layers))):
        own, wanted = _strict(_columns(layer)), tuple([name for name in reads.names if name not in later])
        if own is not None and (layers or place) and later.union(wanted).isdisjoint(own):
            gone += own
            continue
        layers.insert(0, _narrowed_rows(layer, replace(reads, names=wanted)))
        later.update(own or ())
    return JoinedRows(tuple(layers), replace(reads, gone=tuple(gone)))


def _narrowed_rows(table: TableRows, reads: Reads) -> TableRows:
    operands = [one._replace(columns=replace(reads, within=_strict(one.columns))) for one in table.operands]
    if len(operands) == 1:
        return replace(table, operands=tuple(operands))
    within = _strict(table.columns)
    if within is not None:
        return replace(table, columns=replace(reads, within=within))
    return replace(table, operands=tuple(operands), columns=reads)


def _columns(table: TableRows) -> Columns | None:
    return table.columns if len(table.operands) > 1 else table.operands[0].columns


def _strict(columns: Columns | None) -> tuple[Hashable, ...] | None:
    """The columns that were selected before."""
    return columns.within if isinstance(columns, Reads) else columns


def _concatenated(tables: Sequence[TableRows]) -> TableRows | None:
    if len(tables) == 1:
        return tables[0]
    if any(table.columns is not None or not (len(table) or len(table.operands) == 1) for table in tables):
        return None
    tables = _without_types_of_none(tables)
    every = [operand for table in tables for operand in table.operands]
    first_of: dict[Operand, int] = {}
    total = 0
    for operand in every:
        if operand not in first_of:
            first_of[operand] = total
            total += _length(operand)
    operands = tuple(first_of)  # each once: a place is read once
    if len(operands) == len(every) and all(table.rows is None for table in tables):
        return TableRows(operands)
    rows: list[int] = []
    for table in tables:
        numbers = [
            number
            for operand in table.operands
            for number in range(first_of[operand], first_of[operand] + _length(operand))
        ]
        rows += numbers if table.rows is None else [numbers[row] for row in table.rows]
    return TableRows(operands, rows_within(tuple(rows), total))


def _without_types_of_none(tables: Sequence[TableRows]) -> Sequence[TableRows]:
    """The tables, of which those without rows share no type: a join takes that of the others, else of the first."""
    typed = next((table for table in tables if len(table)), tables[0])
    out = []
    for table in tables:
        if not len(table) and table is not typed:
            (own,) = table.operands
            table = TableRows((own._replace(segments=tuple([one._replace(stop=one.start) for one in own.segments])),))
        out.append(table)
    return out


def _length(operand: Operand) -> int:
    return sum([stop - start for _, start, stop in operand.segments])


_Placed = tuple[int, RowSpan]


def _cut(flat: Sequence[_Placed], starts: Sequence[int], rows: range) -> Iterator[tuple[int, int, range]]:
    """The operand, the source and its rows, of each segment that has some of these rows."""
    position = rows.start
    index = max(0, bisect_right(starts, position) - 1)
    while position < rows.stop:
        place, (source, start, stop) = flat[index]
        first = start + position - starts[index]
        last = min(stop, first + rows.stop - position)
        if first < last:
            yield place, source, range(first, last)
            position += last - first
        index += 1


def _grouped(pieces: Iterator[tuple[int, int, range]], count: int) -> tuple[tuple[tuple[int, Rows], ...], ...]:
    by_operand: list[list[tuple[int, Rows]]] = [[] for _ in range(count)]
    for place, source, rows in pieces:
        by_operand[place].append((source, rows))
    return tuple(map(tuple, by_operand))


def _scattered(flat: Sequence[_Placed], starts: Sequence[int], numbers: tuple[int, ...], count: int) -> Reading:
    """Each place is read once, and a repeated row once."""
    wanted = sorted(set(numbers))
    ends = [bisect_left(wanted, start) for start in starts]
    of_source: dict[tuple[int, int], list[tuple[list[int], int]]] = {}  # numbers, and what to add for their rows
    for index, (place, (source, start, _)) in enumerate(flat):
        found = wanted[ends[index] : ends[index + 1]]
        of_source.setdefault((place, source), []).append((found, start - starts[index]))
    position: dict[int, int] = {}
    by_operand: list[list[tuple[int, Rows]]] = [[] for _ in range(count)]
    first = 0
    for (place, source), parts in of_source.items():
        if len(parts) == 1:
            ((found, shift),) = parts
            rows = [number + shift for number in found]
            position.update(zip(found, range(first, first + len(found)), strict=True))
        else:
            rows = sorted({number + shift for found, shift in parts for number in found})
            place_of = dict(zip(rows, range(first, first + len(rows)), strict=True))
            position.update({number: place_of[number + shift] for found, shift in parts for number in found})
        if rows:
            by_operand[place].append((source, rows_within(tuple(rows), rows[-1] + 1)))
        first += len(rows)
    order = tuple(map(position.__getitem__, numbers))
    return Reading(tuple(map(tuple, by_operand)), None if order == tuple(range(first)) else order)
