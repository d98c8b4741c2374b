from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="anonymous files are Linux's")


@pytest.mark.slow
def test_another_process_reads_and_writes_the_same_memory() -> None:
    from twinkle_engines.samplers.vllm_engine import SharedWeights

    tied = torch.empty(3, 5, device="meta")
    like = {"a": tied, "counts": torch.empty(2, dtype=torch.int64, device="meta"), "head": tied}
    shared = SharedWeights({**like, "empty": torch.empty(0, 4, device="meta")}, torch.bfloat16)
    assert {name: (one.dtype, one.shape) for name, one in shared.tensors.items()} == {
        "a": (torch.bfloat16, (3, 5)),
        "counts": (torch.int64, (2,)),
        "head": (torch.bfloat16, (3, 5)),
        "empty": (torch.bfloat16, (0, 4)),
    }
    assert shared.tensors["a"].data_ptr() == shared.tensors["head"].data_ptr()
    shared.tensors["a"].copy_(torch.arange(15).view(3, 5))
    shared.tensors["counts"].copy_(torch.tensor([1 << 40, -1]))
    program = (
        "import json, sys; from twinkle_engines.samplers.vllm_engine import mapped, tensors_in\n"
        "given = json.load(sys.stdin); found = tensors_in(mapped(given['path'], given['size']), given['rows'])\n"
        "print(json.dumps({name: one.tolist() for name, one in found.items()})); found['counts'][1] = 7"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(shared.description),
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert json.loads(done.stdout) == {name: one.tolist() for name, one in shared.tensors.items()} | {
        "counts": [1 << 40, -1]
    }
    assert shared.tensors["counts"].tolist() == [1 << 40, 7]


@pytest.mark.slow
def test_the_memory_has_no_file_and_is_given_back() -> None:
    from twinkle_engines.samplers.vllm_engine import SharedWeights

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("twinkle-weights")

    def files() -> int:
        return sum("twinkle-weights" in os.path.realpath(file) for file in Path("/proc/self/fd").iterdir())

    gc.collect()  # what other tests have left would be counted
    before, open_files = mapped(), files()
    shared = SharedWeights({"a": torch.empty(1000, device="meta")})
    assert mapped() > before
    del shared
    gc.collect()
    assert (mapped(), files()) == (before, open_files)
