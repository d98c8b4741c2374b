"""Evaluation: pass@k against enumeration, means and errors against plain loops."""

from __future__ import annotations

import itertools
import json
import math
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import pytest
from tiny_models import Build

import twinkle
from twinkle import DeviceGroup, DeviceMesh, on, remote_class, remote_function
from twinkle.engines import Rollouts, RolloutSink, SamplingParams, TransformersSampler, evaluate
from twinkle_engines.algorithms.grading import pass_at

if TYPE_CHECKING:
    from pathlib import Path

GIVEN = [[1.0, 0.0, 0.0, 2.0], [0.0, 0.0, 0.5, 0.0], [1.0, 1.0, 1.0, 1.0]]


@remote_class()
class Fixed:
    """Writes answers whose texts are rewards; some rows have fewer."""

    def __init__(self, rewards: list[list[float]] = GIVEN) -> None:
        self.rewards = rewards

    @remote_function(dispatch="slice_dp", split=("prompts",), collect="flatten")
    def sample(self, prompts: list[int], params: SamplingParams) -> Rollouts:
        every = [self.rewards[prompt][: params.n] for prompt in prompts]
        texts = [str(one) for row in every for one in row]
        made = Rollouts([[1, 2]] * len(texts), completions=texts, counts=[*map(len, every)], prompts=prompts)
        return made.replace(versions=[7] * len(texts))


def reward(completions: list[str], **_: Any) -> list[float | None]:
    return [float(text) for text in completions]


def is_half(completions: list[str], **_: Any) -> list[float | None]:
    return [None if text == "0.0" else 10.0 * (text == "0.5") for text in completions]


def test_pass_at_k_is_the_share_of_subsets_with_a_right_answer() -> None:
    for n in range(1, 8):
        for right, k in itertools.product(range(n + 1), range(1, n + 1)):
            subsets = [*itertools.combinations([i < right for i in range(n)], k)]
            assert pass_at(k, n, right) == pytest.approx(mean(map(any, subsets)), abs=1e-15)


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_means_and_errors_are_those_of_prompts(mode: Any) -> None:
    options: dict[str, Any] = {} if mode == "local" else {"groups": [DeviceGroup("two", 2, "CPU")]}
    with twinkle.session(mode, **options):
        sampler = Fixed() if mode == "local" else on("two", DeviceMesh.from_sizes(dp_size=2)).create(Fixed)
        found = evaluate(sampler, [0, 1, 2], reward, is_half, n=4, params=SamplingParams(n=9, max_new_tokens=1))
    totals = [0.75, (0.5 + 10.0) / 4, 1.0]  # a function that does not vote adds nothing
    for name, own in (("reward", totals), ("reward_1", [0.75, 0.125, 1.0]), ("is_half", [0.0, 10.0, 0.0])):
        assert found[name] == pytest.approx(mean(own))
        assert found[f"{name}_error"] == pytest.approx(stdev(own) / math.sqrt(3))
    assert found["version"] == 7.0
    right = [2, 1, 4]  # 10.5 is a reward of 1 or more
    for k in (1, 2, 4):
        assert found[f"pass@{k}"] == pytest.approx(mean(pass_at(k, 4, one) for one in right))
    assert not {"pass@3", "pass@8"} & found.keys()


def test_rows_with_fewer_answers_and_one_prompt() -> None:
    found = evaluate(Fixed([[1.0], [0.0, 1.0]]), [0, 1], reward, n=2, params=SamplingParams())
    assert found["pass@1"] == 0.75 and found["pass@2"] == 1.0 and math.isnan(found["pass@2_error"])
    for rows, n in (([], 1), ([0], 0)):
        with pytest.raises(ValueError, match="evaluate needs"):
            evaluate(Fixed(), rows, reward, n=n)
    with pytest.raises(ValueError, match="evaluate needs"):
        evaluate(Fixed(), [0], params=SamplingParams())


def test_a_sampler_says_its_own_parameters_and_a_sink_keeps_what_it_wrote(tmp_path: Path) -> None:
    from tiny_tokenizer import tiny_tokenizer

    params = SamplingParams(n=1, max_new_tokens=3, seed=1)
    sampler = TransformersSampler(Build("qwen2"), tokenizer=tiny_tokenizer(), params=params)
    sink = RolloutSink(tmp_path / "kept.jsonl")
    found = evaluate(sampler, [[1, 2], [3, 4]], lambda completion_ids, **_: [*map(len, completion_ids)], n=2, sink=sink)
    kept = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert [len(one["sequences"]) for one in kept] == [2, 2] and found["version"] == 0.0
    rewards = [[one["reward"] for one in row["sequences"]] for row in kept]
    assert found["reward"] == mean(map(mean, rewards)) and 1 <= found["reward"] <= 3
