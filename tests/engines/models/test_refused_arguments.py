"""Arguments of other types and values than a public name takes are refused by their name and by what to use."""

from __future__ import annotations

import os
import re
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tiny_models import Build, ragged, sgd

import twinkle
from twinkle.engines import TransformersModel, load, save
from twinkle_engines.checkpoints.replaced_folder import folder_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STRANGE: dict[str, Any] = {
    "None": None,
    "text": "x",
    "empty text": "",
    "digits": "3",
    "bytes": b"x",
    "negative": -1,
    "zero": 0,
    "three": 3,
    "fraction": 2.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "complex": 1j,
    "flag": True,
    "list": [],
    "numbers": [1, 2],
    "mapping": {},
    "columns": {"a": [1]},
    "object": object(),
    "class": int,
    "function": lambda *args, **named: None,
    "array": np.array([1.0, 2.0]),
    "tensor": torch.tensor([1, 2]),
}

LARGE = ("three", "fraction", "infinite")


class Position:
    """An object with a state."""

    def state_dict(self) -> Any:
        return {"next": 1}

    def load_state_dict(self, state: Any) -> None:
        assert state == {"next": 1}


def fault(argument: str, function: Callable[[], object]) -> str | None:
    """What is wrong with how a call refuses an argument; None where our error names it and says what to use."""
    try:
        function()
    except (TypeError, ValueError) as error:
        text = str(error)
        remote = re.findall(r'File "([^"]+)", line \d+', text.partition("on the worker:")[2])
        last = remote[-1] if remote else traceback.extract_tb(error.__traceback__)[-1].filename
        ours = "twinkle_" in last and "site-packages" not in last
        named = argument in text.partition("called from")[0] and any(word in text for word in ("use", "got", "mark"))
        return None if ours and named else f"{type(error).__name__} in {last}: {text[:300]}"
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:300]}"
    return "nothing is raised"


def refuse_all(argument: str, function: Callable[[Any], object], *taken: str) -> None:
    """Check that a function refuses all strange values by the argument's name, but for those that it takes."""
    found = {label: fault(argument, partial(function, value)) for label, value in STRANGE.items() if label not in taken}
    wrong = [f"{argument}={label}: {what}" for label, what in found.items() if what]
    assert not wrong, "\n".join(wrong)


def test_a_path_is_refused_by_name() -> None:
    refuse_all("folder", lambda value: folder_path("folder", value), "text", "digits")
    with pytest.raises(ValueError, match="expanduser"):
        folder_path("folder", "~/x")


def test_a_constructor_refuses_by_name() -> None:
    def build(**options: Any) -> object:
        return TransformersModel(**{"model": Build("qwen2"), "optimizer": sgd, **options})

    texts = ("text", "digits")  # names of a hub
    refuse_all("model", lambda value: build(model=value), *texts)
    refuse_all("optimizer", lambda value: build(optimizer=value), "class")  # which raises its own error
    refuse_all("schedule", lambda value: build(schedule=value), "None", "class")
    refuse_all("max_grad_norm", lambda value: build(max_grad_norm=value), "None", "three", "fraction", "infinite")
    refuse_all("micro_batch_size", lambda value: build(micro_batch_size=value), "None", "three")
    refuse_all("max_tokens", lambda value: build(max_tokens=value), "None", "three")
    refuse_all("lora", lambda value: build(lora=value), "None")
    refuse_all("dtype", lambda value: build(dtype=value))
    refuse_all("compute_dtype", lambda value: build(compute_dtype=value), "None")
    refuse_all("gradient_checkpointing", lambda value: build(gradient_checkpointing=value), "flag")
    refuse_all("balance", lambda value: build(balance=value), "flag")
    refuse_all("device_mesh", lambda value: build(device_mesh=value), "None")


def test_functions_of_other_parameters_are_refused_by_name() -> None:
    def none() -> None:
        raise AssertionError("never called")

    def two(first: object, second: object) -> object:
        raise AssertionError("never called")

    def build(**options: Any) -> object:
        return TransformersModel(**{"model": Build("qwen2"), "optimizer": sgd, **options})

    wrong: dict[str, tuple[Any, ...]] = {"model": (two,), "optimizer": (none, two), "schedule": (none, two)}
    for name, functions in wrong.items():
        for function in functions:
            with pytest.raises(TypeError, match=f"function of {name}="):
                build(**{name: function})
    with twinkle.session("local"):
        model = TransformersModel(Build("qwen2"), optimizer=sgd)
        losses: tuple[Any, ...] = (none, lambda logprobs: logprobs)
        for function in losses:
            with pytest.raises(TypeError, match="function of loss="):
                model.forward_backward(ragged(2, 1), function)


def test_an_error_of_a_function_says_which_it_is() -> None:
    with pytest.raises(ValueError, match="Invalid learning rate") as found:
        TransformersModel(Build("qwen2"), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=-1.0))
    assert any("optimizer=" in note for note in found.value.__notes__)


def test_methods_of_a_model_refuse_by_name(tmp_path: Path) -> None:
    batch: dict[str, Any] = ragged(4, 1)
    shape = batch["input_ids"].shape
    figures = {name: torch.ones(shape) for name in ("logprobs", "ref_logprobs", "advantages")}
    sampled = {**batch, **figures}
    with twinkle.session("local"):
        model = TransformersModel(Build("qwen2"), optimizer=sgd)

        def with_column(name: str, value: Any) -> object:
            return model.forward_backward({**batch, name: value})

        def with_option(name: str, value: Any) -> object:
            return model.forward_backward(sampled, "grpo", **{name: value})

        refuse_all("batch", model.forward_backward, "list")
        refuse_all("batch", model.logprobs, "list")
        refuse_all("loss", lambda value: model.forward_backward(batch, value), "class", "function")
        refuse_all("normalize", lambda value: model.forward_backward(batch, normalize=value), "None")
        refuse_all("dropout", lambda value: model.forward_backward(batch, dropout=value), "None", "flag")
        for column in ("attention_mask", "labels", "mask", "position_ids", "temperatures"):
            refuse_all(column, partial(with_column, column), "None")
        model.forward_backward(batch)
        model.step()
        for option, taken in (("low", ()), ("high", LARGE), ("beta", LARGE[:2])):
            refuse_all(option, partial(with_option, option), "zero", *taken)
        refuse_all("folder", model.save_pretrained, "text", "digits")
        refuse_all("merge", lambda value: model.save_pretrained(tmp_path / "merged", merge=value), "flag")


def test_checkpoints_refuse_by_name(tmp_path: Path) -> None:
    save(tmp_path / "there", loader=Position())
    refuse_all("folder", lambda value: save(value, loader=Position()), "text", "digits")
    refuse_all("folder", lambda value: load(value, loader=Position()), "text", "digits")
    refuse_all("keep", lambda value: save(tmp_path / "kept", loader=Position(), keep=value), "three")

    def with_part(function: Callable[..., object], name: str, value: Any) -> object:
        return function(tmp_path / "there", **{name: value})

    for function in (save, load):
        for part in ("model", "loader", "sync", "stream", "sampler"):
            refuse_all(part, partial(with_part, function, part), "None")
            with pytest.raises(TypeError, match=part):
                with_part(function, part, Position)
        with pytest.raises(ValueError, match="nothing to"):
            function(tmp_path / "there")
    assert sorted(os.listdir(tmp_path / "there")) == ["checkpoint-00000001"]
