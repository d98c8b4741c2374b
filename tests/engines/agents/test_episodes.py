"""Episodes in environments that end, fail, hang and call tools, over a sampler that answers at once, and a real one."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import Any, Literal

import pytest
import torch
from tiny_tokenizer import tiny_tokenizer

import twinkle
from twinkle.engines import (
    Action,
    Environment,
    Episodes,
    Rollouts,
    SamplingParams,
    TransformersSampler,
    advantages,
    tiny_model,
)
from twinkle_engines.batches.chats import Template
from twinkle_remote import current_worker, get, remote_class, remote_function

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token if m.role == 'assistant' else '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@remote_class()
class Writer:
    """A sampler that writes the last words of its prompt again, at once; it notes which rank a session is on."""

    def __init__(self, with_template: bool = True, text: str = "ok", **placement: Any) -> None:
        self.tokenizer, self.text = copy(tiny_tokenizer()), text
        self.tokenizer.chat_template = TEMPLATE
        self._template = Template(self.tokenizer) if with_template else None
        self.seen: list[tuple[list[int], list[int], str | None]] = []

    @remote_function(dispatch="all", collect="first")
    def own_params(self) -> SamplingParams:
        return SamplingParams(max_new_tokens=16)

    @remote_function(dispatch="all", collect="first", sync=True)
    def template(self) -> tuple[Template | None, list[int]]:
        return self._template, [int(self.tokenizer.eos_token_id)]

    @remote_function(dispatch="any", collect="first", sticky="session")
    async def complete(self, prompts: list[Any], params: SamplingParams, session: str | None = None) -> Rollouts:
        """The text with an end, cut at the parameters' limit."""
        await asyncio.sleep(0)
        (prompt,) = prompts
        ids = [*self.tokenizer.encode(self.text), int(self.tokenizer.eos_token_id)][: params.max_new_tokens]
        self.seen.append((list(prompt), ids, session))
        is_done = ids[-1] == self.tokenizer.eos_token_id
        return Rollouts(
            [prompt + ids],
            [[0] * len(prompt) + [1] * len(ids)],
            logprobs=[[0.0] * len(prompt) + [-0.5] * len(ids)],
            versions=[3],
            finish=["stop" if is_done else "length"],
            completions=[self.text],
        )

    @remote_function(dispatch="all", collect="flatten")
    def log(self) -> list[tuple[list[int], list[int], str | None, int | None]]:
        """What it was asked and wrote, by rank."""
        return [(*one, current_worker().rank) for one in self.seen]


class Counts(Environment):
    """An episode of as many turns as its row says; a turn is worth its number."""

    def __init__(self) -> None:
        self.turn = 0

    async def reset(self, row: Any) -> str:
        self.turns = int(row["turns"])
        return f"{row['prompt']} {self.turns}"

    async def step(self, action: Action) -> tuple[str | None, float, bool | Literal["cut"]]:
        self.turn += 1
        is_last = self.turn == self.turns
        return None if is_last else f"turn {self.turn}", float(self.turn), is_last


FAILURES: list[str] = []


class Fails(Counts):
    """It fails in a part of it that its row names, the first time or each time."""

    async def reset(self, row: Any) -> str:
        self.row = row
        self.breaks("reset")
        return await super().reset(row)

    def breaks(self, where: str) -> None:
        """Fail as the row says."""
        if self.row.get("fails") == where and (self.row.get("always") or self.row["prompt"] not in FAILURES):
            FAILURES.append(self.row["prompt"])
            raise ConnectionError(f"no sandbox in {where}")

    async def step(self, action: Action) -> tuple[str | None, float, bool | Literal["cut"]]:
        self.breaks("step")
        if self.row.get("fails") == "late":
            await asyncio.sleep(60.0)
        return await super().step(action)

    async def close(self) -> None:
        FAILURES.append("closed")


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return a + b


class Tools(Environment):
    """It runs tools until no call comes."""

    tools = (add,)

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    async def step(self, action: Action) -> tuple[Any, float, bool | Literal["cut"]]:
        observation, _, _ = await super().step(action)
        self.results += observation if isinstance(observation, list) else []  # type: ignore[arg-type]  # messages
        return observation, 0.0, "cut" if len(self.results) > 3 else False


class Ids(Environment):
    """Token ids in, token ids out."""

    async def reset(self, row: Any) -> list[int]:
        return list(row)

    def step(self, action: Action) -> tuple[list[int] | None, float, bool]:  # type: ignore[override]  # plain ones too
        return [*action.ids, 7], 1.0, len(action.ids) > 99


@pytest.fixture(autouse=True)
def local(request: pytest.FixtureRequest) -> Any:
    """A session in this process, where the test has none of its own."""
    if "stream" in request.node.name:
        yield
        return
    with twinkle.session("local"):
        yield


def run(make: Any, rows: list[Any], writer: Any = None, **options: Any) -> tuple[Rollouts, Any]:
    """The rollouts of rows, in this process, and the component."""
    episodes = Episodes(writer or Writer(), make, **{"max_turns": 9, "max_tokens": 400, **options})
    return get(episodes.run(rows)), episodes


def test_ids_are_those_of_the_engine_and_rewards_stand_at_the_end_of_their_turns() -> None:
    writer = Writer()
    rows = [{"prompt": f"p{i}", "turns": i + 1, "answer": i} for i in range(4)]
    found, _ = run(Counts, rows, writer, n=2)
    assert found.counts == [2] * 4 and found.column("answer") == [0, 1, 2, 3] and found.column("episode") == [0, 1] * 4
    sessions: dict[str | None, list[tuple[list[int], list[int]]]] = {}
    for prompt, ids, session, _ in writer.log():
        sessions.setdefault(session, []).append((prompt, ids))
    of_engine = sorted(turns[-1][0] + turns[-1][1] for turns in sessions.values())
    assert of_engine == sorted(ids.tolist() for ids in found.ids)  # each episode is one sequence
    for mask, rewards, stops in zip(found.mask or (), found.rewards or (), found.column("stops"), strict=True):
        ends = [i for i in range(len(mask)) if mask[i] and (i + 1 == len(mask) or not mask[i + 1])]
        assert rewards[ends].tolist() == [float(turn + 1) for turn in range(len(stops))] and rewards.sum() == sum(
            rewards[ends]
        )
    assert found.sequence_rewards().tolist() == [float(sum(range(1, i + 2))) for i in range(4) for _ in range(2)]
    assert {one for versions in found.versions or () for one in versions.tolist()} == {3}
    assert torch.isfinite(advantages(found, "grpo").advantages[0]).all()  # type: ignore[index]  # it is there


def test_what_fails_is_tried_again_then_left_out_of_its_row(caplog: pytest.LogCaptureFixture) -> None:
    FAILURES.clear()
    rows = [
        {"prompt": "good", "turns": 1},
        {"prompt": "once", "turns": 2, "fails": "step"},
        {"prompt": "never", "turns": 1, "fails": "reset", "always": True},
        {"prompt": "hangs", "turns": 1, "fails": "late"},
    ]
    found, episodes = run(Fails, rows, tries=2, at_once=3, reset_timeout=30.0, step_timeout=0.5)
    assert found.counts == [1, 1, 0, 0] and found.column("prompts") == ["good", "once", "never", "hangs"]
    assert found.sequence_rewards().tolist() == [1.0, 3.0]
    assert get(episodes.stats()) == {"episodes": 2, "again": 3, "left_out": 2}
    assert "'never'" in caplog.text and "no sandbox in reset" in caplog.text and "TimeoutError" in caplog.text
    assert FAILURES.count("closed") == 7


def test_an_episode_is_cut_by_turns_tokens_and_its_environment() -> None:
    rows = [{"prompt": "p", "turns": 50}]
    turns, _ = run(Counts, rows, max_turns=3)
    assert turns.finish == ["length"] and turns.column("stops") == [["stop"] * 3]
    tokens, _ = run(Counts, rows, max_turns=60, max_tokens=120)
    assert tokens.finish == ["length"] and tokens.lengths[0] <= 120 and tokens.mask is not None
    assert int(tokens.mask[0][-1]) == 1  # what the model has not answered is not there
    with pytest.raises(ValueError, match="use max_tokens above"):
        run(Counts, rows, max_tokens=3)
    with pytest.raises(ValueError, match="n=1"):
        run(Counts, rows, params=SamplingParams(n=2))


def test_tools_are_run_and_their_errors_are_read_by_the_model() -> None:
    text = "".join(
        f"<tool_call>{call}</tool_call>"
        for call in (
            '{"name": "add", "arguments": {"a": 2, "b": 3}}',
            '{"name": "sub", "arguments": {}}',
            '{"name": "add", "arguments": {"a": 2}}',
            '{"name": ',
        )
    )
    made: list[Tools] = []

    def make() -> Tools:
        made.append(Tools())
        return made[-1]

    found, _ = run(make, ["2 + 3?"], Writer(text=text), params=SamplingParams(max_new_tokens=200), max_tokens=900)
    assert found.column("stops") == [["stop"]] and found.finish == ["length"]
    contents = [one["content"] for one in made[0].results]
    assert contents[0] == "5" and "no tool 'sub', but add" in contents[1]
    assert "TypeError" in contents[2] and "no JSON" in contents[3]


def test_token_ids_need_no_tokenizer() -> None:
    found, _ = run(Ids, [[1, 2], [3]], Writer(with_template=False), max_turns=2)
    assert found.lengths[0] == found.lengths[1] + 1 and [len(one) for one in found.column("stops")] == [2, 2]
    with pytest.raises(ValueError, match="token ids"):
        run(Counts, [{"prompt": "p", "turns": 1}], Writer(with_template=False))


def test_a_stream_has_each_row_once_and_sessions_stay_on_a_rank() -> None:
    groups = [twinkle.DeviceGroup("samplers", 2, "CPU"), twinkle.DeviceGroup("environments", 2, "CPU")]
    with twinkle.session("threads", groups=groups):
        writer = twinkle.on("samplers", twinkle.DeviceMesh.from_sizes(dp_size=2)).create(Writer)
        mesh = twinkle.DeviceMesh.from_sizes(dp_size=2)
        episodes = twinkle.on("environments", mesh).create(Episodes, writer, Counts, max_turns=9, max_tokens=400)
        rows = [{"prompt": f"p{i}", "turns": 1 + i % 3} for i in range(24)]
        source = [rows[start : start + 4] for start in range(0, 24, 4)]
        with twinkle.stream(source, episodes.run, rows=4, ahead=8) as batches:
            prompts = [prompt for batch in batches for prompt in get(batch).prompts]
        assert sorted(prompts) == sorted(str(row["prompt"]) for row in rows)
        ranks: dict[str | None, set[int | None]] = {}
        for _, _, session, rank in writer.log():
            ranks.setdefault(session, set()).add(rank)
        assert all(len(one) == 1 for one in ranks.values()) and {rank for one in ranks.values() for rank in one} == {
            0,
            1,
        }


def test_a_real_sampler_writes_together_what_waits_and_the_same_as_alone() -> None:
    config, tokenizer = tiny_model()
    params = SamplingParams(max_new_tokens=6, seed=5)
    sampler = TransformersSampler(config, tokenizer=tokenizer, params=params)
    calls: list[int] = []
    write = sampler._gathering._write

    def counted(jobs: Any, params: Any) -> Any:
        calls.append(len(jobs))
        return write(jobs, params)

    sampler._gathering._write = counted
    found, _ = run(Counts, [{"prompt": f"p{i}", "turns": 2} for i in range(8)], sampler)
    assert sum(calls) == 16 and len(calls) <= 6, calls
    assert found.mask is not None and found.logprobs is not None
    for ids, mask, logprobs in zip(found.ids, found.mask, found.logprobs, strict=True):
        start = int(mask.nonzero()[0])
        alone = get(sampler.sample([ids[:start].tolist()]))
        stop = start + int((~mask[start:].bool()).nonzero()[0])
        assert alone.ids[0].tolist() == ids[:stop].tolist()
        torch.testing.assert_close(alone.logprobs[0][start:], logprobs[start:stop])


def test_what_one_call_asks_wrongly_is_its_own_error() -> None:
    config, tokenizer = tiny_model()
    sampler = TransformersSampler(config, tokenizer=tokenizer, params=SamplingParams(max_new_tokens=2))

    async def both() -> list[Any]:
        calls = [twinkle.submit(sampler.complete, [prompt]) for prompt in ([5, 6], [9999], [7])]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, bad, other = asyncio.run(both())
    assert len(good) == len(other) == 1 and isinstance(bad, ValueError) and "9999" in str(bad)
