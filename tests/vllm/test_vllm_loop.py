from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

import pytest
from tiny_engine import ENGINE

from twinkle.engines import SamplingParams

LONG = SamplingParams(max_new_tokens=370, temperature=2.0)


def test_what_nobody_waits_for_is_aborted_and_errors_reach_their_callers(folder: str) -> None:
    from twinkle_engines.samplers.vllm_loop import EngineLoop
    from twinkle_engines.samplers.vllm_model import VLLMModel

    model = VLLMModel(folder, None, None, ENGINE)
    loop = EngineLoop(model.engine_arguments)
    loop.run(model.begin)
    requests = [loop.write([1, 2, row], model.drawing(LONG, row)) for row in range(8)]

    def unfinished(engine: Any) -> int:
        return int(engine.get_num_unfinished_requests())

    begun = loop.run(unfinished)
    assert begun > 0
    for request in requests:
        request.cancel()
    assert loop.run(unfinished) == 0
    cancelled = [request for request in requests if request.cancelled()]
    assert cancelled
    with pytest.raises(CancelledError):
        cancelled[0].result(1)
    with pytest.raises(ZeroDivisionError):
        loop.run(lambda engine: 1 // 0)
    failed = loop.write([1] * 500, model.drawing(LONG, 0))
    with pytest.raises(Exception, match="384"):
        failed.result(60)
    done = loop.write([1], model.drawing(SamplingParams(max_new_tokens=1), 0)).result(60)
    assert len(done.outputs[0].token_ids) == 1

    def fail(engine: Any) -> None:
        engine.step = lambda: 1 // 0

    loop.run(fail)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        loop.write([1], model.drawing(LONG, 0)).result(60)
    for _ in range(20):  # also while it ends
        with pytest.raises(RuntimeError, match="ended"):
            loop.write([1], model.drawing(LONG, 0)).result(60)
    with pytest.raises(RuntimeError, match="ended"):
        loop.run(unfinished)
