"""What callers give is taken as what it is, or refused by name: never an error from inside, and never silence."""

from __future__ import annotations

import linecache
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas
import pytest
import torch
from datasets import Dataset
from tiny_models import Build
from tiny_tokenizer import tiny_tokenizer

from twinkle.engines import (
    JSONLSink,
    Rollouts,
    SamplingParams,
    TensorBoardSink,
    Throughput,
    TransformersSampler,
    advantages,
    mismatch,
    rewards,
    supervised,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = Rollouts([[1, 2], [3]], rewards=[1.0, 2.0], completions=["a", "b"], columns={"x": [1, 2]})
WRITTEN = ROWS.replace(logprobs=[[0, -1.0], [0]])
BY_SEQUENCE = ("temperatures", "completions", "finish", "truncated_sampling")
COLUMNS = ("mask", "logprobs", "ref_logprobs", "rewards", "advantages", "versions", *BY_SEQUENCE)
COLUMNS_BY_ROW = ("counts", "columns", "prompts")
PARAMS = SamplingParams(max_new_tokens=2, seed=0)


def ones(completions: list[Any], **columns: Any) -> list[float]:
    return [1.0] * len(completions)


def values() -> list[Any]:
    """Values of many types, of which a call takes some."""
    plain: list[Any] = [None, "text", b"ab", 3, -1, 1.5, 10**400, True, 1j, object(), int, Decimal(2), len, Ellipsis]
    held: list[Any] = [
        [],
        (),
        {},
        set(),
        [None],
        ["a"],
        [object()],
        [[None]],
        [["a"], ["b"]],
        {1: 2},
        {"a": [1]},
        {3, 4},
    ]
    arrays: list[Any] = [
        np.ones(2),
        np.ones((2, 2)),
        np.array("a"),
        np.array([1j, 2]),
        np.array([None, 1]),
        np.float64(2),
    ]
    tensors: list[Any] = [
        torch.ones(2),
        torch.ones(2, 2, 2),
        torch.tensor(1.0),
        torch.ones(0),
        torch.tensor([True, False]),
    ]
    further: list[Any] = [
        iter([[1]]),
        map(str, [1]),
        range(3),
        pandas.DataFrame({"prompt": ["a"]}),
        slice(1),
        ROWS,
    ]
    numbers: list[Any] = [float("nan"), float("inf"), np.uint64(2**63 + 1), [2**70], [[2**70]], [[1.5]], [-5], [[-5]]]
    return [*plain, *held, *arrays, *tensors, *further, *numbers, [[{"role": "user"}]], [{"role": "user"}], [{"a": 1}]]


def calls(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Public functions and methods, each as a function of one argument."""
    text = TransformersSampler(Build("llama"))
    given: dict[str, Callable[[Any], Any]] = {"ids": Rollouts, "select": ROWS.select, "concat": Rollouts.concat}
    given |= {name: partial(_named, ROWS.replace, name) for name in (*COLUMNS, *COLUMNS_BY_ROW)}
    given |= {f"params {name}": partial(_named, SamplingParams, name) for name in vars(SamplingParams())}
    for name in ("timeout", "micro_batch_size", "params", "tools", "chat_template_kwargs", "tokenizer"):
        given[f"sampler {name}"] = partial(_named, partial(TransformersSampler, Build("llama")), name)
    return given | {
        "row": lambda value: ROWS[value],
        "pad_id": lambda value: ROWS.pad(pad_id=value),
        "side": lambda value: ROWS.pad(value),
        "pack": ROWS.pack,
        "unpad": ROWS.unpad,
        "unpack": ROWS.unpack,
        "advantages": advantages,
        "how": lambda value: advantages(ROWS, value),
        "scale": lambda value: advantages(ROWS, "grpo", value),
        "mismatch": lambda value: mismatch(value, [torch.zeros(2), torch.zeros(1)]),
        "mismatch logprobs": lambda value: mismatch(WRITTEN, value),
        "rewards": rewards,
        "weights": lambda value: rewards(ones, weights=value),
        "reward timeout": lambda value: rewards(ones, timeout=value),
        "votes": lambda value: rewards(lambda completions: value).grade(ROWS),
        "vote": lambda value: rewards(lambda completions: [value, 1.0]).grade(ROWS),
        "grade": rewards(ones).grade,
        "prompts": lambda value: text.sample(value, PARAMS),
        "prompt": lambda value: text.sample([value], PARAMS),
        "params": lambda value: text.sample([[3]], value),
        "state": text.load_state_dict,
        "supervised": lambda value: supervised(value, tiny_tokenizer()),
        "example": lambda value: supervised([value], tiny_tokenizer()),
        "tokenizer": lambda value: supervised([], value),
        "max_length": lambda value: supervised([{"prompt": "a", "completion": "class"}], tiny_tokenizer(), value),
        "tools": lambda value: supervised([], tiny_tokenizer(), tools=value),
        "template": lambda value: supervised([], tiny_tokenizer(), chat_template_kwargs=value),
        "metrics": lambda value: JSONLSink(folder / "metrics.jsonl").log(value, 1),
        "metric": lambda value: JSONLSink(folder / "metric.jsonl").log({"loss": value}, 1),
        "step": lambda value: JSONLSink(folder / "step.jsonl").log({"loss": 1.0}, value),
        "board": lambda value: TensorBoardSink(folder / "board").log({"loss": 1.0}, value),
        "throughput": Throughput,
        "devices": lambda value: Throughput(devices=value),
        "flops": lambda value: Throughput(flops=value),
        "tokens": lambda value: Throughput().metrics(value, 1.0),
        "seconds": lambda value: Throughput().metrics(1, value),
    }


def _named(call: Callable[..., Any], name: str, value: Any) -> Any:
    return call(**{name: value})


def is_told(error: BaseException) -> bool:
    """Whether an error was raised on purpose: by a line that says so, or by the call of a reward function."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    place = trace.tb_frame.f_code.co_filename
    line = linecache.getline(place, trace.tb_lineno).strip()
    return "twinkle" in place and line.startswith("raise ") and isinstance(error, TypeError | ValueError | IndexError)


@pytest.mark.slow
def test_every_value_is_taken_or_refused_on_purpose(tmp_path: Path) -> None:
    raw = []
    for name, call in calls(tmp_path).items():
        for value in values():
            if name == "sampler tokenizer" and isinstance(value, str):
                continue  # the name of one on the hub
            try:
                call(value)
            except Exception as error:
                if not is_told(error):
                    raw.append(f"{name} {value!r:.40}: {type(error).__name__}: {error!s:.100}")
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize(
    "columns",
    [
        {"ids": (one for one in [[1], [2]])},
        {"ids": [[True], [False]]},
        {"ids": [np.array([2**63 + 1], dtype=np.uint64)]},
        {"ids": [[1], [2]], "mask": [[0.5], [1]]},
        {"ids": [[1], [2]], "mask": [[2], [1]]},
        {"ids": [[1], [2]], "logprobs": [[1j], [0]]},
        {"ids": [[1], [2]], "counts": [1.5, 1.5]},
        {"ids": [[1], [2]], "prompts": {"b", "a"}},
        {"ids": [[1], [2]], "columns": {"x": {0: 1, 1: 2}}},
        {"ids": [[1], [2]], "temperatures": ["1", "2"]},
    ],
)
def test_columns_that_would_become_others_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=[*columns][-1]):
        Rollouts(**columns)


@pytest.mark.parametrize(
    "prompts",
    [
        "A class",
        {"prompt": ["A class", "B"]},
        {"A class"},
        iter(["A class"]),
        (one for one in ["A class"]),
        pandas.DataFrame({"prompt": ["A class"]}),
        [{"role": "user", "content": "A class"}],
        [3, 4],
        np.array([3, 4]),
    ],
)
def test_one_prompt_columns_and_iterators_are_no_list_of_prompts(prompts: Any) -> None:
    sampler = TransformersSampler(Build("llama"), tokenizer=tiny_tokenizer())
    with pytest.raises(TypeError, match="prompts"):
        sampler.sample(prompts, PARAMS)


def test_lists_of_many_kinds_are_prompts() -> None:
    sampler, rows = TransformersSampler(Build("llama")), [{"prompt": [3, 4], "x": 1}, {"prompt": [5, 6], "x": 2}]
    expected = [row.tolist() for row in sampler.sample(rows, PARAMS).ids]
    ids = [row["prompt"] for row in rows]
    lists: list[Any] = [tuple(rows), Dataset.from_list(rows), ids, np.array(ids), torch.tensor(ids), pandas.Series(ids)]
    for given in lists:
        assert [row.tolist() for row in sampler.sample(given, PARAMS).ids] == expected


def test_what_a_reward_function_changes_no_other_sequence_sees() -> None:
    given = Rollouts(
        [[1], [2]],
        counts=[2],
        completions=["a", "b"],
        prompts=[[{"role": "user", "content": "q"}]],
        columns={"x": [[]]},
    )

    def change(prompts: list[Any], completions: list[Any], x: list[Any], **rest: Any) -> list[float]:
        for prompt, completion, tests in zip(prompts, completions, x, strict=True):
            prompt.append(completion.pop())
            tests.append(1)
        return [float(len(prompt) + len(tests)) for prompt, tests in zip(prompts, x, strict=True)]

    graded = rewards(change, change).grade(given)
    assert graded.sequence_rewards().tolist() == [6.0, 6.0]
    assert graded.prompts == given.prompts == [[{"role": "user", "content": "q"}]]
    assert graded.columns == {"x": [[]]}


@pytest.mark.parametrize("votes", [{1.0, 2.0}, [1e300, 1.0], [10**400, 1.0], [[1.0], [2.0]], torch.ones(2, 1)])
def test_votes_that_would_become_others_are_refused(votes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="reward"):
        rewards(lambda completions: votes).grade(ROWS)


def test_a_reward_function_that_wants_what_there_is_not_is_named() -> None:
    def exact(completions: list[Any], answer: list[Any]) -> list[float]:
        return [1.0, 2.0]

    with pytest.raises(TypeError, match="exact wants answer"):
        rewards(exact).grade(ROWS)


@pytest.mark.parametrize("value", [True, 0, -1, 1.5, "3"])
def test_a_longest_length_is_a_whole_number_above_0(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_length"):
        supervised([{"prompt": "a", "completion": "class"}], tiny_tokenizer(), value)
