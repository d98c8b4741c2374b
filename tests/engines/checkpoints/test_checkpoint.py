from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import Build, adamw, halving, ragged
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.tensor import DTensor

import twinkle
from twinkle import DataLoader, DeviceGroup, WeightSync
from twinkle.engines import TransformersModel, TransformersSampler, load, save

ROWS = [{name: column[0] for name, column in ragged(1, seed).items()} for seed in range(20)]


STEPS, KILLED_AFTER = 7, 3


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


def new_loader() -> Any:
    return DataLoader(ROWS, batch_size=4, shuffle=True, seed=3, collate_fn=collate)


def new_model(dropout: float = 0.0, **options: Any) -> TransformersModel:
    def build() -> Any:
        model = Build("qwen2")()
        for name, module in model.named_modules():
            if name.endswith("self_attn"):
                module.attention_dropout = dropout
        return model

    return TransformersModel(build, **{"optimizer": adamw, "schedule": halving, "dropout": dropout > 0, **options})


def train(model: TransformersModel, loader: Any, steps: int) -> list[float]:
    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            losses.append(model.forward_backward(batch)["loss"])
            model.step()
            if len(losses) == steps:
                break
    return losses


def values(model: TransformersModel) -> dict[str, torch.Tensor]:
    return {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).clone()
        for name, weight in model.weights().items()
    }


@pytest.mark.slow
def test_a_resumed_training_equals_the_undisturbed_one(tmp_path: Path) -> None:
    undisturbed = new_model()
    losses = train(undisturbed, new_loader(), 9)
    model, loader = new_model(), new_loader()
    before = train(model, loader, 4)
    save(tmp_path, model=model, loader=loader)
    train(model, loader, 1)  # lost
    again, position = new_model(), new_loader()
    torch.manual_seed(99)
    assert load(tmp_path, model=again, loader=position) == tmp_path / "checkpoint-00000001"
    assert before + train(again, position, 5) == losses
    expected = values(undisturbed)
    assert all(torch.equal(weight, expected[name]) for name, weight in values(again).items())


def with_an_unused_part() -> Any:
    model = Build("qwen2")()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.unused = torch.nn.Linear(4, 4)
    return model


OPTIMIZERS: dict[str, Any] = {
    "adamw": adamw,
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01, weight_decay=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, initial_accumulator_value=0.5),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("build", [Build("qwen2"), with_an_unused_part])
@pytest.mark.slow
def test_a_checkpoint_has_the_optimizers_state_and_no_other(
    tmp_path: Path, optimizer: str, steps: int, build: Any
) -> None:
    undisturbed, saved, fresh, used = (
        TransformersModel(build, optimizer=OPTIMIZERS[optimizer], schedule=halving) for _ in range(4)
    )
    batches = [ragged(4, seed) for seed in range(4)]
    train(undisturbed, batches, 4)
    train(saved, batches, steps)
    train(used, [ragged(4, 7)], 1)
    save(tmp_path, model=saved)
    for model in (fresh, used):
        load(tmp_path, model=model)
    expected = values(undisturbed)
    for model in (saved, fresh, used):
        train(model, batches[steps:], 4 - steps)
        assert all(torch.equal(weight, expected[name]) for name, weight in values(model).items())


def test_versions_go_on(tmp_path: Path) -> None:
    with twinkle.session("local", groups=[DeviceGroup("all", 1, "CPU")]):
        model = new_model(remote_group="all")
        sync = WeightSync(model, TransformersSampler(Build("qwen2"), remote_group="all"))
        assert (sync(), sync()) == (1, 2)
        save(tmp_path, model=model, sync=sync)
        resumed = WeightSync(model, TransformersSampler(Build("qwen2"), remote_group="all"))
        load(tmp_path, sync=resumed)
        assert (resumed.version, resumed()) == (2, 3)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft reads it
def test_adapters_are_saved_without_the_model(tmp_path: Path) -> None:
    from peft import LoraConfig

    lora = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    model = new_model(lora=lora)
    train(model, new_loader(), 2)
    path = save(tmp_path, model=model)
    saved = FileSystemReader(path / "model").read_metadata().state_dict_metadata
    weights = [name for name in saved if name.startswith("model.")]
    assert len(weights) == 4 and all("lora_" in name for name in weights)
    again = new_model(lora=lora)
    load(tmp_path, model=again)
    expected = values(model)
    assert all(torch.equal(weight, expected[name]) for name, weight in values(again).items())


def test_what_cannot_be_saved_or_read_is_an_error(tmp_path: Path) -> None:
    model = new_model()
    model.forward_backward(ragged(2, 1))
    with pytest.raises(ValueError, match="a checkpoint holds no gradients"):
        save(tmp_path, model=model)
    with pytest.raises(ValueError, match="keep"):
        save(tmp_path, model=model, keep=0)
    model.step()
    save(tmp_path, model=model)
    with pytest.raises(ValueError, match="schedule is StepLR there"):
        load(tmp_path, model=new_model(schedule=None))


@pytest.fixture(scope="module")
def trainings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What run_checkpoint.py leaves."""
    folder = tmp_path_factory.mktemp("checkpoints")
    program = [sys.executable, str(Path(__file__).parents[1] / "run_checkpoint.py"), str(folder)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=840, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.processes
@pytest.mark.timeout(1000)
def test_a_training_that_was_killed_goes_on_as_if_nothing_had_been(trainings: Path) -> None:
    """With dropout, so that random numbers go on too, on each rank its own."""
    told = {
        name: [json.loads(line) for line in (trainings / name / "losses.jsonl").read_text().splitlines()]
        for name in ("undisturbed", "killed")
    }
    losses = dict(told["undisturbed"])
    assert list(losses) == list(range(1, STEPS + 1)) and len(set(losses.values())) == STEPS
    assert told["killed"][KILLED_AFTER - 1][0] == KILLED_AFTER and told["killed"][-1][0] == STEPS
    assert all(loss == losses[step] for step, loss in told["killed"])


@pytest.mark.processes
@pytest.mark.timeout(1000)
def test_another_mesh_reads_it(trainings: Path) -> None:
    """Written by 2 x 2 x 1 after two steps, read by 1 x 2 x 2 and by this process, each of which makes two more."""
    tmp_path = trainings / "meshes"
    assert (tmp_path / "checkpoint-00000002").is_dir() and not list(tmp_path.glob(".checkpoint*"))
    here, loader = new_model(), new_loader()
    train(here, loader, 4)
    read, position = new_model(), new_loader()
    load(tmp_path, model=read, loader=position)
    assert position.state_dict() == loader.state_dict()
    expected = values(here)
    for name, weight in values(read).items():
        torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-5)
    losses = train(here, loader, 2)
    assert train(read, position, 2) == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize("ahead", [0, 4])
def test_a_loader_that_a_stream_reads_is_saved_by_the_stream(tmp_path: Path, ahead: int) -> None:
    loader = DataLoader(list(range(12)), batch_size=2)
    save(tmp_path, loader=loader)
    with twinkle.stream(loader, list, ahead=ahead) as stream:
        next(stream)
        with pytest.raises(ValueError, match="stream="):
            save(tmp_path, loader=loader)
        with pytest.raises(ValueError, match="stream="):
            save(tmp_path, loader=loader, stream=stream)
        save(tmp_path, stream=stream)
    with pytest.raises(ValueError, match="stream="):
        save(tmp_path, loader=loader)
    stream.load_state_dict(stream.state_dict())
    assert sum(len(batch) for batch in stream) == 10
    save(tmp_path, loader=loader)


def with_another_base() -> Any:
    model = Build("qwen2")()
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 30.0}
    return model


def test_a_checkpoint_of_another_model_or_optimizer_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    saved = new_model()
    train(saved, [ragged(4, 1)], 1)
    save(tmp_path, model=saved)
    others: dict[str, dict[str, Any]] = {
        "optimizer": {"optimizer": OPTIMIZERS["momentum"]},
        "Adam": {"optimizer": OPTIMIZERS["adam"]},
        "groups": {"optimizer": lambda p: torch.optim.AdamW([{"params": p[:3]}, {"params": p[3:]}], lr=0.1)},
        "lm_head": {"model": Build("llama")},
        "another rotary base|rope_parameters": {"model": with_another_base},
    }
    for told, options in others.items():
        model = TransformersModel(**{"model": Build("qwen2"), "optimizer": adamw, "schedule": halving, **options})
        train(model, [ragged(4, 2)], 1)
        before = values(model)
        with pytest.raises(ValueError, match=told):
            load(tmp_path, model=model)
        assert all(torch.equal(weight, before[name]) for name, weight in values(model).items())
        train(model, [ragged(4, 2)], 1)


def test_the_newest_complete_checkpoint_is_found_and_old_ones_go(tmp_path: Path) -> None:
    loader = new_loader()
    assert load(tmp_path / "none", loader=loader) is None and load(tmp_path, loader=loader) is None
    states, batches = [], iter(loader)
    for _ in range(4):
        next(batches)
        states.append(loader.state_dict())
        save(tmp_path, loader=loader, keep=3)
    names = [f"checkpoint-0000000{i}" for i in (2, 3, 4)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    shutil.copytree(tmp_path / names[0], tmp_path / ".checkpoint-00000005")  # interrupted before it had its name
    shutil.copytree(tmp_path / names[0], tmp_path / ".checkpoint-00000001.old")  # interrupted while it went
    again = new_loader()
    assert load(tmp_path, loader=again) == tmp_path / names[2] and again.state_dict() == states[3]
    older = shutil.copytree(tmp_path / names[0], tmp_path / "best")
    for path, state in ((tmp_path / names[1], states[2]), (older, states[1])):
        assert load(path, loader=again) == path and again.state_dict() == state
    assert save(tmp_path, loader=loader, keep=1) == tmp_path / "checkpoint-00000005"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "checkpoint-00000005"]
    with pytest.raises(ValueError, match="has no state of model"):
        load(tmp_path, model=new_model())


def test_what_is_no_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "checkpoint-00000001").mkdir()
    Build("qwen2")().save_pretrained(tmp_path / "model")
    for place in (tmp_path / "file", tmp_path / "checkpoint-00000001", tmp_path / "model"):
        with pytest.raises(ValueError, match="is no checkpoint"):
            load(place, loader=new_loader())
    with pytest.raises(ValueError, match="nothing to load"):
        load(tmp_path)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "metrics.jsonl").write_text("")
    assert load(tmp_path / "logs", loader=new_loader()) is None


def test_a_model_that_is_not_trained_has_weights_alone(tmp_path: Path) -> None:
    saved, read = new_model(optimizer=None), TransformersModel(Build("qwen2", seed=9), optimizer=None)
    save(tmp_path, model=saved)
    load(tmp_path, model=read)
    assert all(torch.equal(weight, values(saved)[name]) for name, weight in values(read).items())


def linear(steps: int) -> Any:
    return lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)


def test_what_the_program_says_holds_after_a_resume_and_what_differs_is_said(tmp_path: Path) -> None:
    saved = new_model(schedule=linear(4))
    train(saved, [ragged(2, 1)], 2)
    save(tmp_path, model=saved)
    again = new_model(schedule=linear(4))
    load(tmp_path, model=again)  # as it was: no word
    train(again, [ragged(2, 1)], 1)
    other = new_model(schedule=linear(10), optimizer=lambda p: torch.optim.AdamW(p, lr=0.1, eps=1e-3, weight_decay=0.2))
    with pytest.warns(UserWarning, match="since the checkpoint") as said:
        load(tmp_path, model=other)
    words = " ".join(str(one.message) for one in said)
    assert "lr was 0.01 and is 0.1," in words and "weight_decay was 0.1 and is 0.2," in words
    assert "total_iters was 4 and is 10," in words and "eps" not in words
    other.forward_backward(ragged(2, 1))
    assert other.step()["lr"] == pytest.approx(0.1 * (1 - 0.9 * 2 / 10))


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def test_several_models_and_states_of_ones_own_are_parts_by_name(tmp_path: Path) -> None:
    actor, critic, counter = new_model(), TransformersModel(Build("llama"), optimizer=adamw), Counter()
    counter.count = 7
    save(tmp_path, models={"actor": actor}, critic=critic, counter=counter)
    others = TransformersModel(Build("qwen2", 8), optimizer=adamw, schedule=halving), Counter()
    read = TransformersModel(Build("llama", 8), optimizer=adamw)
    load(tmp_path, models={"actor": others[0], "critic": read}, counter=others[1])
    assert others[1].count == 7
    for own, theirs in ((actor, others[0]), (critic, read)):
        assert all(torch.equal(weight, values(own)[name]) for name, weight in values(theirs).items())
    with pytest.raises(TypeError, match="strange= is a int"):
        save(tmp_path, strange=3)
    with pytest.raises(ValueError, match="two parts are named 'actor'"):
        save(tmp_path, models={"actor": actor}, actor=critic)


def test_what_others_wrote_is_left_alone(tmp_path: Path) -> None:
    theirs = [tmp_path / "checkpoint-1", tmp_path / "checkpoint-7"]
    for folder in theirs:
        folder.mkdir()
        (folder / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match="is no checkpoint"):
        load(tmp_path, counter=Counter())
    names = [save(tmp_path, counter=Counter(), keep=1).name for _ in range(3)]
    assert names == [f"checkpoint-000000{number:02d}" for number in (8, 9, 10)]
    assert all(folder.exists() for folder in theirs) and load(tmp_path, counter=Counter()) == tmp_path / names[-1]
