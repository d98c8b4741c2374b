import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_gpt import Size, SplitGPT, TinyGPT, torch_mesh, write_on
from torch import Tensor
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
        [sys.executable, script, folder, *LAYOUTS], capture_output=True, text=True, timeout=110, check=False
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


def test_a_stage_holds_its_part_and_nothing_else() -> None:
    whole = dict(TinyGPT(SMALL, seed=0).named_parameters())
    parts = [dict(TinyGPT(SMALL, seed=0, stage=stage, stages=2).named_parameters()) for stage in range(2)]
    assert not parts[0].keys() & parts[1].keys()
    assert parts[0].keys() | parts[1].keys() == whole.keys()
    for part in parts:
        for name, value in part.items():
            assert torch.equal(value, whole[name])


def test_what_is_written_depends_on_a_texts_own_draws_alone() -> None:
    model = TinyGPT(SMALL, seed=0)
    words = torch.arange(12).reshape(3, 4)
    draws = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))
    together, logprobs = write_on(model, words, draws)
    for i in range(3):
        alone, own = write_on(model, words[i : i + 1], draws[i : i + 1])
        assert torch.equal(alone[0], together[i])
        assert_close(own[0], logprobs[i])
    assert together.shape == (3, 9) and torch.equal(together[:, :4], words)


def test_the_log_probabilities_of_what_is_written_are_the_models_own() -> None:
    model = TinyGPT(SMALL, seed=0)
    words, logprobs = write_on(model, torch.zeros(2, 3, dtype=torch.long), torch.tensor([[0.0, 0.5], [0.9, 1.0]]))
    logits: Tensor = model(words[:, :-1])[:, 2:]
    assert_close(logits.log_softmax(-1).gather(2, words[:, 3:, None])[:, :, 0], logprobs)
    assert int(words.max()) < SMALL.vocabulary


def test_rows_that_do_not_fill_the_micro_batches_are_an_error() -> None:
    mesh = torch_mesh(DeviceMesh.from_sizes(pp_size=1, dp_size=1, tp_size=1, device_type="cpu"))
    gpt = SplitGPT(SMALL, 0, mesh, micro_batches=2)
    with pytest.raises(ValueError, match="3 rows on one data rank do not make 2 equal micro-batches; a multiple of 2"):
        gpt.backward(torch.zeros(3, 4, dtype=torch.long), {}, lambda logits, rows: logits.mean())
