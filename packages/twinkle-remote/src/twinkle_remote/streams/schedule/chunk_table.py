"""The chunks of a stream that are not delivered, as columns of numbers: about 60 bytes each."""

from __future__ import annotations

from array import array

WAITING, AT_WORK, FINISHED = range(3)


class ChunkTable:
    """One entry for each chunk: consecutive rows that go through the stages together.

    A chunk is an index into the columns; the index of a removed chunk is used again.

    Attributes:
        first: Position of its first row in the source.
        count: Its rows.
        cut: Rows of its result that were delivered before.
        batch: Index of the source's batch that holds it, or -1.
        stage: The stage that it is in or waits for.
        state: WAITING, AT_WORK or FINISHED.
        rank: The data rank that works on it, or did last.
        begun: Version when its first stage began; -1 before that.
        ended: Version when its last stage was done; -1 before that.
        tick: Number of the event that finished it; 0 before that.
        errors: How often a stage raised for it.
        late: How often a call has passed its deadline for it.
        losses: How often a worker was lost that worked on it; at most 100.
        overtaken: How often it was made again because it was too old.
    """

    __slots__ = (
        "_free",  # the first one, because the others are the columns
        "batch",
        "begun",
        "count",
        "cut",
        "ended",
        "errors",
        "first",
        "late",
        "losses",
        "overtaken",
        "rank",
        "stage",
        "state",
        "tick",
    )

    def __init__(self) -> None:
        self.first = array("q")
        self.count = array("i")
        self.cut = array("i")
        self.batch = array("q")
        self.stage = array("h")
        self.state = array("b")
        self.rank = array("i")
        self.begun = array("q")
        self.ended = array("q")
        self.tick = array("q")
        self.errors = array("b")
        self.late = array("b")
        self.losses = array("b")
        self.overtaken = array("b")
        self._free = array("q")

    def __len__(self) -> int:
        return len(self.first) - len(self._free)

    def add(self, first: int, count: int, batch: int) -> int:
        """A new chunk that waits for its first stage."""
        if self._free:
            chunk = self._free.pop()
        else:
            chunk = len(self.first)
            for name in self.__slots__[1:]:
                getattr(self, name).append(0)
        self.first[chunk], self.count[chunk], self.cut[chunk], self.batch[chunk] = first, count, 0, batch
        self.stage[chunk], self.state[chunk], self.rank[chunk] = 0, WAITING, -1
        self.begun[chunk] = self.ended[chunk] = -1
        self.tick[chunk] = 0
        self.errors[chunk] = self.late[chunk] = self.losses[chunk] = self.overtaken[chunk] = 0
        return chunk

    def remove(self, chunk: int) -> None:
        """Remove a chunk; its index may be given to another one."""
        self.count[chunk] = 0
        self._free.append(chunk)

    def split(self, chunk: int) -> list[int]:
        """Make chunks of one row each out of one; the first keeps its index."""
        parts = [chunk, *(self._copy(chunk, offset, 1) for offset in range(1, self.count[chunk]))]
        self.count[chunk] = 1
        return parts

    def split_at(self, chunk: int, rows: int) -> int:
        """Leave a waiting chunk its first rows, and make another one of the rest.

        Args:
            chunk: A chunk that no data rank has.
            rows: In [1, its rows - 1].

        Returns:
            The other one.
        """
        rest = self._copy(chunk, rows, self.count[chunk] - rows)
        self.count[chunk] = rows
        return rest

    def _copy(self, chunk: int, offset: int, count: int) -> int:
        """Another chunk, of some rows of one; it is where that one is, and has failed as often."""
        part = self.add(self.first[chunk] + offset, count, self.batch[chunk])
        for column in (self.stage, self.state, self.begun, self.errors, self.late, self.losses, self.overtaken):
            column[part] = column[chunk]
        return part

    def live(self) -> list[int]:
        """All chunks, by their first row."""
        return sorted((c for c in range(len(self.first)) if self.count[c]), key=self.first.__getitem__)
