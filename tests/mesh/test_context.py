from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from twinkle_mesh import current_rank, use_rank


def test_threads_do_not_see_one_another() -> None:
    seen: list[int | None] = []
    with use_rank(1):
        thread = threading.Thread(target=lambda: seen.append(current_rank()))
        thread.start()
        thread.join(10)
        assert current_rank() == 1
    assert seen == [None]


def test_tasks_do_not_see_one_another() -> None:
    async def hold(rank: int, both: asyncio.Barrier) -> int | None:
        with use_rank(rank):
            await both.wait()
            return current_rank()

    async def main() -> tuple[int | None, int | None]:
        both = asyncio.Barrier(2)
        async with asyncio.timeout(10):
            return await asyncio.gather(hold(0, both), hold(1, both))

    assert list(asyncio.run(main())) == [0, 1]


def test_one_holder_can_be_entered_again() -> None:
    holder = use_rank(2)
    with holder, use_rank(5), holder:
        assert current_rank() == 2
    assert current_rank() is None


@pytest.mark.parametrize("rank", [1.0, "1", True])
def test_only_a_whole_number_is_a_rank(rank: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number"):
        use_rank(rank)
    with use_rank(np.int64(3)) as held:  # type: ignore[arg-type]  # as callers do
        assert type(held) is int
