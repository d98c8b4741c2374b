"""The engine alone: what nobody waits for is aborted, errors reach their callers, and a dead engine is said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tiny_engine import ENGINE

from twinkle.engines import SamplingParams
from twinkle_engines.samplers.sampler import Job

LONG = SamplingParams(max_new_tokens=370, temperature=2.0)


def test_what_nobody_waits_for_is_aborted_and_errors_reach_their_callers(folder: str) -> None:
    from twinkle_engines.samplers.vllm_engine import VLLMEngine

    engine = VLLMEngine(folder, None, None, ENGINE)

    def unfinished() -> int:
        return int(engine._engine.output_processor.get_num_unfinished_requests())

    async def call() -> Any:
        work = asyncio.create_task(engine.write([Job([1, 2, row], 0, row) for row in range(8)], LONG))
        while not unfinished():
            await asyncio.sleep(0.01)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        while unfinished():
            await asyncio.sleep(0.01)
        with pytest.raises(Exception, match="384"):
            await engine.write([Job([1] * 500, 0, 0)], LONG)
        return await engine.write([Job([1], 0, 0)], SamplingParams(max_new_tokens=1))

    ((answer, versions),) = asyncio.run(call())
    assert len(answer.ids) == 1 and versions.tolist() == [0, 0]
    engine._engine.shutdown()
    with pytest.raises(Exception, match=r"[Ee]ngine"):
        asyncio.run(engine.write([Job([1], 0, 0)], LONG))
