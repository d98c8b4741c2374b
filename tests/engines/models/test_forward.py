from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import Build, logprobs_of, plain_logprobs, sgd
from torch.testing import assert_close

from twinkle.engines import Rollouts, TransformersModel
from twinkle_engines.models import forward
from twinkle_engines.models.forward import chosen, find_head, token_values

IDS = [[3, 5, 7, 9], [3, 5], [2, 4, 6, 1, 1], [7]]
HEAT = [0.5, 1.0, 2.0, 0.7]


def at(temperature: float, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = Build("llama")()(input_ids=torch.tensor([ids])).logits[0, :-1] / temperature
    chosen = logits.log_softmax(-1).gather(1, torch.tensor(ids)[1:, None])[:, 0]
    return torch.cat([torch.zeros(1), chosen])


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1}, {"max_tokens": 8}])
def test_logits_are_divided_by_the_temperature_of_their_sequence(options: dict[str, Any]) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    rows = Rollouts(IDS, temperatures=HEAT)
    for ids, heat, row in zip(IDS, HEAT, logprobs_of(model, rows), strict=True):
        assert_close(row, at(heat, ids), rtol=0, atol=1e-5)
    counted = [at(heat, ids)[1:] for ids, heat in zip(IDS, HEAT, strict=True)]
    expected = -torch.cat(counted).mean().item()
    batches: list[Any] = [rows] if options else [rows, rows.pad("left") | {"mask": rows.pad("left")["attention_mask"]}]
    if not options:
        padded = rows.pad()
        batches.append({**{n: padded[n] for n in ("input_ids", "attention_mask")}, "temperatures": HEAT})
        batches[-1]["mask"] = padded["attention_mask"]
        batches.append([{**pack, "mask": pack["input_ids"] > 0} for pack in rows.pack(8)])
    for batch in batches:
        assert model.forward_backward(batch)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("wrong", [[1.0, 0.0, 1.0, 1.0], [1.0], [1.0, 1.0, float("nan"), 1.0]])
def test_temperatures_that_are_none_are_named(wrong: list[float]) -> None:
    padded = Rollouts(IDS).pad()
    batch = {**padded, "mask": padded["attention_mask"], "temperatures": torch.tensor(wrong)}
    with pytest.raises(ValueError, match="temperature"):
        TransformersModel(Build("llama"), optimizer=sgd).forward_backward(batch)


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 1}, {"max_tokens": 8}])
def test_empty_sequences_count_for_nothing_wherever_they_stand(options: dict[str, Any]) -> None:
    model = TransformersModel(Build("llama"), optimizer=sgd, **options)
    rows: list[list[int]] = [[], [3, 5, 7, 9], [4], []]
    found = logprobs_of(model, Rollouts(rows))
    assert [len(row) for row in found] == [0, 4, 1, 0]
    assert_close(found[1], plain_logprobs(Build("llama")(), torch.tensor(rows[1])).detach(), rtol=0, atol=1e-5)
    for normalize in ("token", "sequence"):
        model = TransformersModel(Build("llama"), optimizer=sgd, **options)
        told = model.forward_backward(Rollouts(rows), "cross_entropy", normalize=normalize)
        assert told == {"loss": pytest.approx(-found[1][1:].mean().item(), rel=1e-5), "tokens": 3}
        assert model.step()["grad_norm"] > 0
    assert model.forward_backward(Rollouts([[], []])) == {"loss": 0.0, "tokens": 0.0}


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_chosen_has_the_values_and_gradients_of_a_softmax(kind: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(2)
    logits = (3 * torch.randn(2, 5, 17, generator=generator)).to(kind)
    targets = torch.randint(17, (2, 5), generator=generator)
    weights = torch.randn(2, 5, generator=generator)
    found, gradients = [], []
    for own in (True, False):
        given = logits.clone().requires_grad_()
        wide = given if kind == torch.float64 else given.float()
        values = chosen(given, targets) if own else wide.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        total: Any = (values * weights).sum()
        total.backward()
        assert given.grad is not None and given.grad.dtype == kind
        found.append(values.detach())
        gradients.append(given.grad)
    assert_close(found[0], found[1])
    assert_close(gradients[0], gradients[1])


class Capped(torch.nn.Module):
    """A model that does something with its head's output."""

    def __init__(self, model: Any, cap: float, factor: float) -> None:
        super().__init__()
        self.own, self.config, self.cap, self.factor = model, model.config, cap, factor
        self.config.final_logit_softcapping = cap or None

    def get_output_embeddings(self) -> Any:
        return self.own.get_output_embeddings()

    def forward(self, input_ids: Any, logits_to_keep: int = 0, **given: Any) -> Any:
        made = self.own(input_ids=input_ids, **given)
        logits = made.logits * self.factor
        made.logits = (logits / self.cap).tanh() * self.cap if self.cap else logits
        return made


@pytest.mark.parametrize("entropy", ["none", "measured", "trained"])
@pytest.mark.parametrize("made", [(0.0, 1.0), (3.0, 1.0), (0.0, 0.25), None])
def test_chunks_have_the_values_and_gradients_of_whole_logits(
    made: Any, entropy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a soft cap, a factor, and a head that is not where the model says, whose logits are made at once."""
    plain = Build("llama")()
    model: Any = Strange(plain) if made is None else Capped(plain, *made)
    head = find_head(model, torch.device("cpu"))
    assert (head.after is None) == (made is None)
    ids = torch.tensor([[3, 5, 7, 9, 2], [2, 4, 6, 1, 1]])
    counted = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 0, 1, 1]]).bool()
    batch = {"input_ids": ids, "targets": ids, "temperatures": torch.full(ids.shape, 0.7)}
    weights = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    logits = model(input_ids=ids).logits[:, :-1] / 0.7
    logs = logits.log_softmax(-1)
    wanted = [logs.gather(-1, ids[:, 1:, None])[..., 0], -(logs.exp() * logs).sum(-1)]
    if entropy != "trained":
        wanted[1] = wanted[1].detach()
    total: Any = sum((one * weights[:, 1:])[counted[:, 1:]].sum() for one in wanted[: 1 + (entropy != "none")])
    total.backward()
    right = plain.get_output_embeddings().weight.grad.clone()
    plain.zero_grad()
    for rows in (2, 100):
        monkeypatch.setattr(forward, "CHUNK", rows * 61)
        found = [one for one in token_values(model, head, batch, counted, entropy) if one is not None]
        for own, one in zip(found, wanted, strict=False):
            assert_close(own[:, 1:][counted[:, 1:]], one[counted[:, 1:]])
            assert not own[~counted].any()
        total = sum((one * weights).sum() for one in found)
        total.backward()
        assert_close(plain.get_output_embeddings().weight.grad, right, rtol=1e-4, atol=1e-6)
        plain.zero_grad()
    assert len(found) == 1 + (entropy != "none")


def test_logits_are_those_of_a_chunk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "CHUNK", 2 * 61)
    sizes: list[int] = []
    model = TransformersModel(Build("llama"), optimizer=sgd)
    model.forward_backward(Rollouts(IDS))
    head = model._model.get_output_embeddings()
    head.register_forward_hook(lambda module, given, made: sizes.append(made.numel() // 61))
    model.forward_backward(Rollouts(IDS))
    assert max(sizes) == 2 and sum(sizes) > 8


class Strange(torch.nn.Module):
    """A model whose head is not where it says."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.own, self.config = model, model.config
        self.other = torch.nn.Linear(32, 61)

    def get_output_embeddings(self) -> Any:
        return self.other

    def forward(self, input_ids: Any, logits_to_keep: int = 0, **given: Any) -> Any:
        return self.own(input_ids=input_ids, **given)
