from __future__ import annotations

import json
import subprocess
import sys
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from peft import PeftModel, get_peft_model_state_dict
from run_training import CASES, LAYOUTS, batches, whole
from safetensors.torch import load_file
from tiny_models import (
    CONFIGS,
    Build,
    PlainLoop,
    adapted,
    halving,
    logprobs_of,
    plain_logprobs,
    ragged,
    sequences,
    sgd,
)
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from twinkle import DeviceMesh
from twinkle.engines import TransformersModel, TransformersSampler
from twinkle_engines.models.layout import check_sizes
from twinkle_engines.models.parallel import check_tensor_parallel

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Figures and weights of each layout, and what failing ranks told, in real processes over Gloo."""
    folder = tmp_path_factory.mktemp("training")
    command = [sys.executable, str(Path(__file__).parents[1] / "run_training.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def plain() -> Mapping[str, tuple[Any, Any, Any, Any]]:
    """The same of a loop in one process, one sequence at a time."""
    found = {}
    for name, case in CASES.items():
        model = adapted(case.family) if case.lora else Build(case.family)()
        start = {key: weight.clone() for key, weight in trained_weights(model).items()}
        loop = PlainLoop(model, case.optimizer, halving, case.max_grad_norm)
        figures = [loop.train(step, case.normalize) for step in batches()]
        with torch.no_grad():
            logprobs = [plain_logprobs(model, ids) for ids, _ in sequences(ragged(6, 4, "left"))]
        weights = {key: (weight.clone(), start[key]) for key, weight in trained_weights(model).items()}
        found[name] = (figures, logprobs, weights, (model.merge_and_unload() if case.lora else model).state_dict())
    return found


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    if not hasattr(model, "peft_config"):
        return dict(model.state_dict())
    return dict(get_peft_model_state_dict(model, save_embedding_layers=False))


@pytest.mark.processes
@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
@pytest.mark.parametrize(("layout", "case"), [(layout, case) for layout, cases in LAYOUTS.items() for case in cases])
def test_a_divided_model_makes_the_steps_of_one_process(
    results: Path, plain: Mapping[str, tuple[Any, Any, Any, Any]], layout: str, case: str
) -> None:
    figures, logprobs, weights, merged = plain[case]
    ranks = sorted((results / layout).glob(f"{case}-?.pt"))
    assert len(ranks) == prod(map(int, layout.split("x")))
    for rank in ranks:
        own_figures, own_logprobs, own_weights = torch.load(rank)
        for (own_losses, own_norm, own_rate), (losses, norm, rate) in zip(own_figures, figures, strict=True):
            assert own_losses == pytest.approx(losses, rel=1e-5)
            assert own_norm == pytest.approx(norm, rel=1e-4)
            assert own_rate == rate
        assert own_weights.keys() == weights.keys()
        for name, (weight, start) in weights.items():
            moved = float((weight - start).abs().max())
            assert_close(own_weights[name], weight, rtol=0, atol=1e-3 * moved + 1e-7, msg=f"{name} moved {moved}")
        for own, expected in zip(own_logprobs, logprobs, strict=True):
            assert_close(own, expected, rtol=1e-3, atol=1e-4)
    if CASES[case].lora:
        base = PeftModel.from_pretrained(Build("llama")(), results / layout / f"{case}-model")
        written = base.merge_and_unload().state_dict()
    else:
        written = AutoModelForCausalLM.from_pretrained(results / layout / f"{case}-model").state_dict()
    assert written.keys() == merged.keys()
    for name, weight in written.items():
        if CASES[case].lora:
            assert_close(weight, merged[name], rtol=0, atol=1e-4)
        else:
            assert torch.equal(weight, own_weights[name]), name


@pytest.mark.processes
def test_models_that_ranks_build_differently_are_an_error(results: Path) -> None:
    for told in (results / "2x1x1").glob("unlike-*.txt"):
        assert "ranks have built different models" in told.read_text()
    assert len(list(results.glob("*/unlike-*.txt"))) == 10


def one(family: str = "llama", **options: Any) -> TransformersModel:
    return TransformersModel(Build(family), **{"optimizer": sgd, **options})


def test_weights_are_those_of_a_config_or_a_folder(tmp_path: Path) -> None:
    model = TransformersModel(CONFIGS["qwen3"], optimizer=sgd)
    drawn = {name: whole(weight) for name, weight in model.weights().items()}
    writer = TransformersSampler(CONFIGS["qwen3"])  # of the same seed
    assert all(torch.equal(weight, drawn[name]) for name, weight in writer.weights().items())
    model.save_pretrained(tmp_path)
    read = TransformersModel(tmp_path, optimizer=sgd)
    assert all(torch.equal(whole(read.weights()[name]), weight) for name, weight in drawn.items())


def test_bfloat16_computes_and_float32_keeps() -> None:
    whole, half = one(), one(compute_dtype="bfloat16")
    steps = [(model.forward_backward(ragged(6, 1))["loss"], model.step()["grad_norm"]) for model in (whole, half)]
    assert steps[0][0] != steps[1][0]
    assert steps[1] == pytest.approx(steps[0], rel=0.05)
    assert {weight.dtype for weight in half.weights().values()} == {torch.float32}


def test_a_function_is_a_loss_and_gets_the_columns_of_the_batch() -> None:
    batch = ragged(5, 1, "left")
    batch["weight"] = torch.rand(batch["input_ids"].shape)

    def weighted(logprobs: torch.Tensor, padded: Mapping[str, torch.Tensor], power: int) -> torch.Tensor:
        return -logprobs * padded["weight"] ** power

    told = one(micro_batch_size=2).forward_backward(batch, weighted, power=2)
    model = Build("llama")()
    weights = [row[there] for row, there in zip(batch["weight"], batch["attention_mask"].bool(), strict=True)]
    total, count = 0.0, 0
    for (ids, counted), weight in zip(sequences(batch), weights, strict=True):
        counted[0] = False
        total -= (plain_logprobs(model, ids) * weight**2)[counted].sum().item()
        count += int(counted.sum())
    assert told == {"loss": pytest.approx(total / count, rel=1e-5), "tokens": count}


def test_an_empty_batch_counts_for_nothing_and_a_step_needs_tokens() -> None:
    model = one()
    assert model.forward_backward(ragged(0, 1)) == {"loss": 0.0, "tokens": 0.0}
    assert logprobs_of(model, ragged(0, 1)) == []
    with pytest.raises(ValueError, match=r"step\(\) has no gradient: no token has counted"):
        model.step()
    model.forward_backward(ragged(2, 1))
    model.step()
    with pytest.raises(ValueError, match="has no gradient"):
        model.step()


def test_values_of_another_graph_are_refused() -> None:
    model = one("llama")
    losses: list[Any] = [
        lambda logprobs, batch: logprobs.detach(),
        lambda logprobs, batch: logprobs.sum(),
    ]
    for loss in losses:
        with pytest.raises(ValueError, match=r"the loss .*lambda.* returned"):
            model.forward_backward(ragged(4, 1), loss)
    told = model.forward_backward(ragged(4, 1), lambda logprobs, batch: logprobs.mul_(-1))  # written on
    assert told == pytest.approx(one("llama").forward_backward(ragged(4, 1)))


def test_a_batch_that_fails_leaves_no_gradient_behind() -> None:
    calls = []

    def failing(logprobs: torch.Tensor, padded: Mapping[str, torch.Tensor]) -> torch.Tensor:
        calls.append(padded)
        if len(calls) == 2:
            raise RuntimeError("the second micro-batch is bad")
        return -logprobs

    model, undisturbed = one(micro_batch_size=2), one(micro_batch_size=2)
    model.forward_backward(ragged(4, 2))
    with pytest.raises(RuntimeError, match="the second micro-batch is bad") as caught:
        model.forward_backward(ragged(6, 3), failing)
    assert "the gradients since the last step() are forgotten" in caught.value.__notes__
    with pytest.raises(ValueError, match="has no gradient"):
        model.step()
    for each in (model, undisturbed):
        each.forward_backward(ragged(4, 1))
    assert model.step() == undisturbed.step()
    model.forward_backward(ragged(4, 2))
    with pytest.raises(ValueError, match="a batch has input_ids"):
        model.forward_backward({"labels": torch.zeros(2, 3)})
    undisturbed.forward_backward(ragged(4, 2))
    assert model.step() == undisturbed.step()


@pytest.mark.processes
@pytest.mark.slow
def test_a_batch_that_fails_on_one_rank_fails_on_all_and_the_next_one_works(results: Path) -> None:
    model = one()
    expected = [model.forward_backward(ragged(4, 1))["loss"], model.step()["grad_norm"]]
    for rank in range(2):
        long, after_long, bad, after_bad = json.loads((results / f"failing-{rank}.json").read_text())
        assert "a sequence has 20 tokens, but max_tokens=16" in long and "not on this rank" in bad
        for figures in (after_long, after_bad):
            assert json.loads(figures) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batch_size": 0}, "micro_batch_size"),
        ({"max_grad_norm": -1.0}, "above 0, or None"),
        ({"micro_batch_size": 2, "max_tokens": 9}, "max_tokens tokens: give one of them"),
    ],
)
def test_options_out_of_range_are_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one(**options)


def test_unknown_losses_and_columns_are_errors() -> None:
    model = one()
    with pytest.raises(ValueError, match="loss='mse' is none of 'cross_entropy', 'ppo'"):
        model.forward_backward(ragged(2, 1), "mse")
    with pytest.raises(ValueError, match="normalize='row' is none of 'token', 'sequence'"):
        model.forward_backward(ragged(2, 1), normalize="row")  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ValueError, match="a batch has input_ids, but this mapping has labels"):
        model.forward_backward({"labels": torch.zeros(2, 3)})
    with pytest.raises(TypeError, match="a function that builds the model"):
        TransformersModel(Build("llama")(), optimizer=sgd)


@pytest.mark.parametrize("field", ["pp_size", "cp_size", "ulysses_size"])
def test_meshes_that_divide_otherwise_are_errors_with_the_sizes_that_work(field: str) -> None:
    sizes: dict[str, Any] = {field: 2}
    with pytest.raises(ValueError, match=f"the mesh has {field}=2; use {field}=1"):
        check_sizes("TransformersModel", DeviceMesh.from_sizes(dp_size=2, **sizes))


def test_tensor_parallel_sizes_divide_the_heads() -> None:
    with pytest.raises(ValueError, match=r"tp_size=4 .*2 key-value heads"):
        check_tensor_parallel(Build("llama")(), 4)
    with pytest.raises(ValueError, match="; use 1 or 2"):
        check_tensor_parallel(Build("llama")(), 3)


def test_experts_are_written_by_the_names_of_published_files(tmp_path: Path) -> None:
    one("qwen3-moe").save_pretrained(tmp_path / "own")
    Build("qwen3-moe")().save_pretrained(tmp_path / "theirs")
    own, theirs = (load_file(tmp_path / who / "model.safetensors") for who in ("own", "theirs"))
    assert own.keys() == theirs.keys() and "model.layers.0.mlp.experts.3.down_proj.weight" in own
    assert all(torch.equal(weight, theirs[name]) for name, weight in own.items())


@pytest.mark.ray
@pytest.mark.processes
def test_workers_of_a_cluster_make_the_steps_of_one_process(joining: dict[str, str]) -> None:
    command = [sys.executable, str(Path(__file__).parents[1] / "run_on_ray.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=840, check=False, env=joining)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    model = Build("qwen2")()
    ((loss,), norm, _) = PlainLoop(model, sgd).train([ragged(5, 1)])
    assert (figures["loss"], figures["norm"]) == (pytest.approx(loss, rel=1e-5), pytest.approx(norm, rel=1e-4))
    with torch.no_grad():
        for (ids, _), row in zip(sequences(ragged(3, 2)), figures["logprobs"], strict=True):
            assert_close(torch.tensor(row), plain_logprobs(model, ids), rtol=1e-3, atol=1e-4)
    assert list(map(len, figures["balanced"])) == figures["lengths"]
    for row, expected in zip(figures["balanced"], figures["in_order"], strict=True):
        assert row == pytest.approx(expected, rel=1e-3, abs=1e-4)
    for own, expected in zip(*figures["losses"], strict=True):
        assert own == pytest.approx(expected, rel=1e-4)
