"""Rewards by functions with TRL's signature."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from typing import Any

import pytest

import twinkle_remote as twinkle
from twinkle.engines import Rollouts, rewards
from twinkle_engines.batches.columns import names_of
from twinkle_mesh import DeviceGroup, DeviceMesh


def length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(text)) for text in completions]


def right(prompts: list[str], completions: list[str], answer: list[str], **kwargs: Any) -> list[float | None]:
    return [None if a == "?" else float(c == a) for c, a in zip(completions, answer, strict=True)]


async def slow(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [0.5] * len(completions)


def sampled() -> Rollouts:
    return Rollouts(
        [[1, 2, 3], [4, 5], [6], [7, 8]],
        mask=[[0, 1, 1], [0, 1], [1], [0, 0]],
        counts=[2, 0, 2],
        prompts=["a", "b", "c"],
        columns={"answer": ["xx", "y", "?"]},
        completions=["xx", "yyy", "?", ""],
    )


def test_functions_get_one_entry_a_sequence() -> None:
    seen: dict[str, Any] = {}

    def keep(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [0.0] * 4

    rewards(keep).grade(sampled())
    assert seen == {
        "prompts": ["a", "a", "c", "c"],
        "completions": ["xx", "yyy", "?", ""],
        "completion_ids": [[2, 3], [5], [6], []],
        "answer": ["xx", "xx", "?", "?"],
    }


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_rewards_are_the_weighted_sum_of_the_votes(mode: Any) -> None:
    options: dict[str, Any] = {} if mode == "local" else {"groups": [DeviceGroup("judges", 2, "CPU")]}
    place: dict[str, Any] = (
        {} if mode == "local" else {"remote_group": "judges", "device_mesh": DeviceMesh.from_sizes(dp_size=2)}
    )
    with twinkle.session(mode, **options):
        grader = rewards(right, length, slow, weights=[10, 1, 2], **place)
        graded = twinkle.get(grader.grade(sampled()))
        assert graded.rewards is not None
        assert [values.tolist() for values in graded.rewards] == [[0, 0, 13], [0, 4], [2], [0, 1]]
        assert graded.column("length") == [2.0, 3.0, 1.0, 0.0] and math.isnan(graded.column("right")[2])
        assert twinkle.select(graded, *names_of(sampled())) == sampled()
        assert len(twinkle.get(grader.grade(sampled()[:0]))) == 0


class Judge:
    """Grades by a component of the same group."""

    __name__ = "judge"

    def __init__(self, lengths: Lengths) -> None:
        self.lengths = lengths

    def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        assert twinkle.current_worker().rank in (0, 1)
        return list(twinkle.get(self.lengths.of(completions)))


@twinkle.remote_class()
class Lengths:
    @twinkle.remote_function(dispatch="slice", collect="flatten")
    def of(self, texts: list[str]) -> list[float]:
        return [float(len(text)) for text in texts]


@pytest.mark.timeout(60)
def test_functions_run_as_the_worker_and_may_call_components_of_its_group() -> None:
    with twinkle.session("threads", groups=[DeviceGroup("judges", 2, "CPU")]):
        lengths = twinkle.on("judges").create(Lengths)
        grader = rewards(Judge(lengths), remote_group="judges", device_mesh=DeviceMesh.from_sizes(dp_size=2))
        assert twinkle.get(grader.grade(sampled())).sequence_rewards().tolist() == [2, 3, 1, 0]


def test_a_sequence_without_a_vote_has_no_reward() -> None:
    made = rewards(right).grade(sampled()).sequence_rewards().tolist()
    assert made[:2] == [1, 0] and all(map(math.isnan, made[2:]))


def test_a_vote_that_is_no_number_takes_nothing_from_the_others() -> None:
    def sometimes(completions: list[str], **kwargs: Any) -> list[float]:
        return [math.nan if len(text) == 1 else 1.0 for text in completions]

    assert rewards(sometimes, length).grade(sampled()).sequence_rewards().tolist() == [3, 4, 1, 1]


def test_answers_to_chats_are_messages_and_a_function_may_name_what_it_wants() -> None:
    chat = [{"role": "user", "content": "hi"}]

    def polite(completions: list[list[dict[str, str]]]) -> list[float]:
        return [float(messages[0]["content"] == "hello") for messages in completions]

    rollouts = Rollouts([[1]], prompts=[chat], completions=["hello"])
    assert rewards(polite).grade(rollouts).sequence_rewards().tolist() == [1]


def test_it_runs_where_an_event_loop_runs() -> None:
    async def notebook() -> list[float]:
        return list(rewards(slow).grade(sampled()).sequence_rewards().tolist())

    assert asyncio.run(notebook()) == [0.5] * 4


def test_errors_name_the_function() -> None:
    def short(completions: list[str], **kwargs: Any) -> list[float]:
        return [1.0]

    with pytest.raises(ValueError, match="short returned 1 rewards for 4 completions"):
        rewards(short).grade(sampled())
    with pytest.raises(ValueError, match="these rollouts have none"):
        rewards(length).grade(sampled().replace(completions=None))
    with pytest.raises(ValueError, match="a weight for each"):
        rewards(length, right, weights=[1])
    with pytest.raises(ValueError, match="needs functions"):
        rewards()
    with pytest.raises(TypeError, match="remote_grup"):
        rewards(length, remote_grup="x")


def test_functions_run_as_trl_runs_them() -> None:
    def runs_a_loop(completions: list[str]) -> list[float]:
        return asyncio.run(slow(completions))

    def rings(completions: list[str]) -> list[float]:
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.alarm(10)
        signal.alarm(0)
        return [1.0] * len(completions)

    def later(completions: list[str]) -> Any:
        return slow(completions)

    made = rewards(runs_a_loop, rings, slow, later).grade(sampled())
    assert made.sequence_rewards().tolist() == [2.5] * 4


def test_async_functions_share_a_loop_and_run_beside_plain_ones() -> None:
    shared: dict[str, Any] = {}

    async def first(completions: list[str]) -> list[float]:
        shared["lock"] = asyncio.Event()
        await shared["lock"].wait()
        return [1.0] * len(completions)

    async def second(completions: list[str]) -> list[float]:
        while "lock" not in shared or not begun.is_set():
            await asyncio.sleep(0.001)
        shared["lock"].set()
        return [1.0] * len(completions)

    def plain(completions: list[str]) -> list[float]:
        begun.set()
        return [1.0] * len(completions)

    begun = threading.Event()
    assert rewards(first, second, plain).grade(sampled()).sequence_rewards().tolist() == [3.0] * 4


@pytest.mark.parametrize("name", ["prompts", "completions", "completion_ids"])
def test_a_column_that_would_be_hidden_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"a column is named {name}|columns= has {name}"):
        rewards(length).grade(sampled().replace(columns={name: [1, 2, 3]}))


def test_what_a_prompt_has_begun_is_of_the_answer() -> None:
    seen: dict[str, Any] = {}

    def keep(**kwargs: Any) -> list[float]:
        seen.update(kwargs)
        return [0.0]

    ask = {"role": "user", "content": "2+2?"}
    rewards(keep).grade(Rollouts([[1]], prompts=[[ask, {"role": "assistant", "content": "It is"}]], completions=[" 4"]))
    assert seen["prompts"] == [[ask]] and seen["completions"] == [[{"role": "assistant", "content": "It is 4"}]]


def test_a_second_grader_adds_to_the_first_and_none_grades_twice() -> None:
    made = sampled().replace(rewards=[[0.5, 0, 0], [0, math.nan], [1], [0, 0]])
    graded = rewards(length).grade(rewards(right).grade(made))
    assert graded.rewards is not None
    assert [one.tolist() for one in graded.rewards] == [[0.5, 0, 3], [0, 3], [2], [0, 0]]
    assert graded.column("length") == [2.0, 3.0, 1.0, 0.0]
    with pytest.raises(ValueError, match="length has graded these rollouts already"):
        rewards(length).grade(graded)


def test_no_vote_at_all_is_said_once() -> None:
    grader = rewards(lambda completions: [None] * len(completions))
    with pytest.warns(UserWarning, match="voted for none of 4 completions"):
        grader.grade(sampled())
    assert bool(grader.grade(sampled()).sequence_rewards().isnan().all())


def alarmed(completions: list[str]) -> list[float]:
    """As a checker of mathematics does it, which takes every error for a wrong answer."""
    try:
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    except ValueError:
        return [0.0] * len(completions)
    return [1.0] * len(completions)


def test_a_checker_that_needs_the_main_thread_is_refused_elsewhere() -> None:
    assert rewards(alarmed).grade(sampled()).sequence_rewards().tolist() == [1] * 4
    mesh = DeviceMesh.from_sizes(dp_size=1)
    with twinkle.session("threads", groups=[DeviceGroup("judges", 1, "CPU")]):
        with pytest.raises(ValueError, match="main thread"):
            twinkle.get(rewards(alarmed, remote_group="judges", device_mesh=mesh).grade(sampled()))
        grader = rewards(length, remote_group="judges", device_mesh=mesh)
        assert twinkle.get(grader.grade(sampled())).sequence_rewards().tolist() == [2, 3, 1, 0]
