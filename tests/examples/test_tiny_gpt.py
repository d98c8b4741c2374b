import torch
from tiny_gpt import Size, TinyGPT, write_on
from torch import Tensor
from torch.testing import assert_close

SMALL = Size(vocabulary=50, context=12, width=16, heads=2, blocks=2)


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
