"""A program over Ray that is killed as a whole at random points: each row is consumed once."""

from __future__ import annotations

import json
import random
import signal
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from twinkle_data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.long

ROWS, KILLS = 160, 2

PROGRAM = """
    import json, os, signal, sys, threading, time
    from pathlib import Path

    import numpy as np
    import twinkle
    from twinkle import DataLoader, DeviceGroup, DeviceMesh, get, remote_class, remote_function

    folder, ranks, kill_after, delay = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])

    @remote_class()
    class Maker:
        @remote_function(dispatch="slice_dp", collect="flatten")
        def make(self, samples: list[int]) -> np.ndarray:
            with (folder / "made").open("a") as file:
                file.write("".join(f"{row}\\n" for row in samples))
            time.sleep(0.002 + 0.03 * (int(samples[0]) % 7 == 0))
            return np.repeat(np.array(samples), 64).reshape(len(samples), 64)

        @remote_function(dispatch="all", collect="none")
        def pid(self) -> int:
            return os.getpid()

    def kill_all(pids):
        time.sleep(delay)
        for pid in [*pids, os.getpid()]:
            os.kill(pid, signal.SIGKILL)

    with twinkle.session("ray", groups=[DeviceGroup("makers", ranks, "CPU")]):
        makers = Maker(device_mesh=DeviceMesh.from_sizes(dp_size=ranks), remote_group="makers")
        pids = get(makers.pid())
        # Without a function that could draw, it needs no torch.
        loader = DataLoader(np.arange(ROWS), batch_size=16, shuffle=True, seed=5)
        saved = folder / "state"
        state = json.loads(saved.read_text()) if saved.exists() else {"seen": []}
        options = {"rows": 5, "ahead": 40, "order": "arrival"}
        with twinkle.stream(loader, makers.make, **options) as batches:
            if "stream" in state:
                batches.load_state_dict(state["stream"])
            for number, batch in enumerate(batches):
                if number == kill_after:
                    threading.Thread(target=kill_all, args=(pids if isinstance(pids, list) else [pids],)).start()
                seen = state["seen"] = state["seen"] + [int(value[0]) for value in get(batch)]
                state["stream"] = batches.state_dict()
                (folder / "new").write_text(json.dumps(state))
                (folder / "new").rename(saved)
        print("done")
"""


@pytest.mark.ray
def test_a_program_that_is_killed_twice_consumes_each_row_once_on_any_number_of_ranks(
    joined_program: Callable[..., Any], tmp_path: Path
) -> None:
    points = random.Random(7)
    source = PROGRAM.replace("ROWS", str(ROWS))
    ranks = [3, 1, 2]
    for number in ranks[:KILLS]:
        after, delay = points.randint(1, 8), points.uniform(0.0, 0.05)
        killed = joined_program(source, str(tmp_path), str(number), str(after), str(delay), OMP_NUM_THREADS="1")
        assert killed.process.wait(timeout=400) == -signal.SIGKILL
        assert 5 <= len(json.loads((tmp_path / "state").read_text())["seen"]) < ROWS
    out = joined_program(source, str(tmp_path), str(ranks[-1]), "9999", "0", OMP_NUM_THREADS="1").finish(timeout=120)
    assert "done" in out
    seen = json.loads((tmp_path / "state").read_text())["seen"]
    assert sorted(seen) == list(range(ROWS)), "each row once"
    order = [int(row) for batch in DataLoader(list(range(ROWS)), batch_size=16, shuffle=True, seed=5) for row in batch]
    assert max(abs(order.index(row) - place) for place, row in enumerate(seen)) < 40 + 16, (
        "in the loader's order, nearly"
    )
    made = Counter(map(int, (tmp_path / "made").read_text().split()))
    assert set(made) == set(range(ROWS))
    again = sum(made.values()) - ROWS
    assert 0 <= again <= KILLS * (40 + 2 * 5), "only rows that were read ahead and not delivered are made again"
