import subprocess
import sys
from pathlib import Path

import pytest
import torch
from split_gpt import SplitGPT, torch_mesh
from tiny_gpt import Size
from torch.testing import assert_close

from twinkle import DeviceMesh

LAYOUTS = ("2x2x2", "1x1x1", "3x1x2")
SMALL = Size(vocabulary=50, context=12, width=16, heads=2, blocks=2)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Losses and gradients of each layout and of the plain model, in real processes over Gloo."""
    folder = tmp_path_factory.mktemp("split")
    script = Path(__file__).parent / "run_split.py"
    done = subprocess.run(
        [sys.executable, script, folder, *LAYOUTS], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("loss", ["next_word", "grpo"])
def test_a_split_model_has_the_loss_and_the_gradients_of_the_whole_one(results: Path, layout: str, loss: str) -> None:
    whole_loss, whole = torch.load(results / f"{loss}.pt")
    pp, dp, _ = map(int, layout.split("x"))
    seen: set[str] = set()
    losses: list[float] = []
    for file in sorted((results / layout).glob(f"{loss}-*.pt")):
        mean, gradients = torch.load(file)
        losses += [] if mean is None else [mean]
        for name, gradient in gradients.items():
            assert_close(gradient, whole[name], rtol=1e-4, atol=1e-6 * float(whole[name].abs().max()) + 1e-8, msg=name)
        seen |= gradients.keys()
    assert seen == whole.keys()
    # Each data rank's last stage told its mean, on each of its tensor-parallel ranks.
    assert len(losses) == len(list((results / layout).glob(f"{loss}-*.pt"))) // pp
    assert sum(losses) / len(losses) == pytest.approx(whole_loss, rel=1e-5)
    assert dp == 1 or len(set(losses)) > 1


def test_rows_that_do_not_fill_the_micro_batches_are_an_error() -> None:
    mesh = torch_mesh(DeviceMesh.from_sizes(pp_size=1, dp_size=1, tp_size=1, device_type="cpu"))
    gpt = SplitGPT(SMALL, 0, mesh, micro_batches=2)
    with pytest.raises(ValueError, match=r"3 rows .* 2 equal micro-batches"):
        gpt.backward(torch.zeros(3, 4, dtype=torch.long), {}, lambda logits, rows: logits.mean())
