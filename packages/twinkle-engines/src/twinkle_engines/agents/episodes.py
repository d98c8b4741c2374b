"""Episodes: a stage that lets a model act in environments, turn by turn, for many rows at once; and environments.

Any object with the methods `reset`, `step` and `close` is an environment; the class has them all, for what is left out.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from twinkle_engines.agents.paths import Path, Paths, rollouts_of
from twinkle_engines.batches.rollouts import Rollouts  # noqa: TC001  read at run time: it travels over HTTP
from twinkle_engines.samplers.sampler import SamplingParams  # noqa: TC001  as above
from twinkle_remote import remote_class, remote_function, submit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerBase

    from twinkle_engines.batches.chats import Template
    from twinkle_mesh import DeviceMesh


Observation = str | list[dict[str, Any]] | list[int]
"""What a model sees next: a text, messages, or token ids."""
_CALL = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True)
class ToolCall:
    """A call of a tool that a model asked for.

    Attributes:
        name: Of the tool; None for a call that cannot be read.
        arguments: By name.
        id: Of the call, where the model or the client gave one.
        error: Why it cannot be read.
    """

    name: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""
    error: str = ""


@dataclass(frozen=True)
class Action:
    """One turn of a model.

    Attributes:
        text: Its text, without the end token and what the parameters skip.
        ids: Its tokens, with the end token.
        calls: The tools that it asks for, in order.
        finish: "stop", or "length" where it was not done.
    """

    text: str
    ids: list[int]
    calls: tuple[ToolCall, ...]
    finish: str


class Environment:
    """A base class whose parts may be left out: without a `step` of its own it runs tools until no call comes.

    An instance lives for one episode, on one event loop. Methods may be plain functions; they then run in a thread.

    Attributes:
        tools: Annotated functions with docstrings, plain or async: the template describes them, `call` runs them.
    """

    tools: Sequence[Callable[..., Any]] = ()

    async def reset(self, row: Any) -> Observation:
        """Begin an episode of a row; without a method of its own the row's "prompt", or the row."""
        found: Observation = row["prompt"] if isinstance(row, Mapping) else row
        return found

    async def step(self, action: Action) -> tuple[Observation | None, float, bool | Literal["cut"]]:
        """Take an action.

        Returns:
            What the model sees next (None at the end), the reward of this turn, and whether the episode is done;
            "cut" where a limit ends it and not its task.
        """
        return (await self.call(action), 0.0, False) if action.calls else (None, 0.0, True)

    async def close(self) -> None:
        """End the episode; called once, also after errors."""

    async def call(self, action: Action) -> list[dict[str, Any]]:
        """Run the tools that an action asks for, one after the other.

        Returns:
            A message of role "tool" for each call; the text of an error where it cannot be read, has no such tool, or
            where the tool raises.
        """
        known = {tool.__name__: tool for tool in self.tools}
        messages = []
        for call in action.calls:
            try:
                if call.name not in known:
                    raise ValueError(call.error or f"there is no tool {call.name!r}, but {', '.join(known) or 'none'}")
                found = await awaited(known[call.name], **call.arguments)
                text = found if isinstance(found, str) else json.dumps(found, default=str)
            except Exception as error:  # whatever a tool raises is what the model reads
                text = f"{type(error).__name__}: {error}"
            message = {"role": "tool", "content": text, "name": call.name or ""}
            messages.append({**message, "tool_call_id": call.id} if call.id else message)
        return messages


async def awaited(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a function of a user's: async ones run here, plain ones in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    found = await asyncio.to_thread(function, *args, **kwargs)
    return await found if inspect.isawaitable(found) else found


def read_message(
    tokenizer: PreTrainedTokenizerBase, text: str, tools: Sequence[Any]
) -> tuple[dict[str, Any], tuple[ToolCall, ...]]:
    """The message of the assistant that a model wrote, and its calls.

    A tokenizer with a `response_template` reads it (Transformers' `parse_response`). Without one, calls are those of
    Hermes' and Qwen's form: a JSON object with "name" and "arguments" between <tool_call> marks.

    Args:
        tokenizer: With the template.
        text: What was written, with special tokens, without the end token.
        tools: Those of the environment; calls are read where there are some.
    """
    if not tools:
        return {"role": "assistant", "content": text}, ()
    if getattr(tokenizer, "response_template", None):
        try:
            message = {"role": "assistant", **tokenizer.parse_response(text)}
        except Exception as error:  # of a form that the template does not know
            return {"role": "assistant", "content": text}, (ToolCall(None, error=f"the call cannot be read: {error}"),)
        found = message.get("tool_calls") or ()
        return message, tuple([_read_call(call.get("function", call), str(call.get("id") or "")) for call in found])
    calls = tuple([_read_call(found) for found in _CALL.findall(text)])
    read = [call for call in calls if call.name is not None]
    message = {"role": "assistant", "content": text}
    if calls and len(read) == len(calls):
        functions = [{"name": call.name, "arguments": dict(call.arguments)} for call in calls]
        message["content"] = _CALL.sub("", text).strip()
        message |= {"tool_calls": [{"type": "function", "function": one} for one in functions]}
    return message, calls


def _read_call(call: Any, number: str = "") -> ToolCall:
    """A call of a mapping with its name and arguments, or of the text of one as JSON, which arguments may be too."""
    try:
        given = json.loads(call) if isinstance(call, str) else call
        arguments = given.get("arguments") or {}
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        return ToolCall(str(given["name"]), {str(name): value for name, value in arguments.items()}, number)
    except (AttributeError, KeyError, ValueError) as error:
        return ToolCall(None, id=number, error=f"the call {call!r:.80} is no JSON of a name and arguments: {error!r}")


_LOG = logging.getLogger("twinkle.engines")


class _EnvironmentError(Exception):
    """The cause is an error of an environment, or its lateness."""


@remote_class()
class Episodes:
    """Episodes of a sampler in environments: `run` is a stage of a stream.

    Args:
        sampler: A sampler, or its handle: it has the tokenizer and its template.
        make_environment: Makes an environment for each episode.
        max_turns: Answers of the model in one episode, at most.
        max_tokens: Tokens of a sequence, at most: prompts, observations and answers together; an episode that reaches
            it is cut.
        n: Episodes for each row, a group.
        params: How to draw a turn; None takes those of the sampler. Their `n` is 1.
        at_once: Episodes that run at the same time on this worker.
        tries: Times that an episode begins anew where its environment fails, the first one included.
        reset_timeout: Seconds for `make_environment` and `reset`.
        step_timeout: Seconds for a `step`, and for `close`.
        device_mesh: The mesh, of the dim dp alone.
        remote_group: The group of workers on which environments live.

    Raises:
        ValueError: A limit is below 1.
    """

    def __init__(
        self,
        sampler: Any,
        make_environment: Callable[[], Any],
        *,
        max_turns: int,
        max_tokens: int,
        n: int = 1,
        params: SamplingParams | None = None,
        at_once: int = 64,
        tries: int = 2,
        reset_timeout: float = 60.0,
        step_timeout: float = 60.0,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        if min(max_turns, max_tokens, n, at_once, tries) < 1:
            raise ValueError("max_turns, max_tokens, n, at_once and tries are at least 1")
        self._sampler, self._make = sampler, make_environment
        self._max_turns, self._max_tokens, self._n = max_turns, max_tokens, n
        self._params, self._tries = params, tries
        self._reset_timeout, self._step_timeout = reset_timeout, step_timeout
        self._at_once = at_once
        self._known: tuple[Template | None, list[int], SamplingParams] | None = None
        self._counts = {"episodes": 0, "again": 0, "left_out": 0}

    @remote_function(dispatch="slice_dp", split=("rows",), collect="flatten")
    async def run(self, rows: Sequence[Any]) -> Rollouts:
        """Run `n` episodes for each row.

        Returns:
            A row for each one given, with its keys as columns. An episode is one sequence, or several with one number
            in the column `episode` by sequence, where a template has rewritten the history. Further columns by
            sequence: `stops` (why each turn ended), `completions` (the last answer), `finish` ("length" where a limit
            cut the episode). Rewards stand at the last token of their turn. An episode whose environment has failed
            `tries` times is not there, and is named in the log: its row has fewer.

        Raises:
            ValueError: `params.n` is not 1, there is no tokenizer for texts and chats, or a first prompt is longer than
                `max_tokens`.
            RemoteCallError: The sampler has failed.
        """
        known = self._known
        if known is None:
            template, ends = await submit(self._sampler.template)
            asked: SamplingParams = await submit(self._sampler.own_params)
            params = self._params or asked
            if params.n != 1:
                raise ValueError(f"n= is of Episodes; the parameters of a turn have n=1, got {params}")
            known = self._known = template, ends, params
        places = asyncio.Semaphore(self._at_once)
        tasks = [
            asyncio.create_task(self._episode(row, f"{i}.{k}", places))
            for i, row in enumerate(rows)
            for k in range(self._n)
        ]
        try:
            made = await asyncio.gather(*tasks)
        finally:  # after an error the others end too, and close their environments
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        of_row = [made[start : start + self._n] for start in range(0, len(made), self._n)]
        found = [[paths for paths in row if paths is not None] for row in of_row]
        return rollouts_of(rows, found)

    @remote_function(dispatch="all", collect="sum")
    def stats(self) -> dict[str, int]:
        """Episodes so far, those that began again, and those that were left out."""
        return dict(self._counts)

    async def _episode(self, row: Any, name: str, places: asyncio.Semaphore) -> list[Path] | None:
        """The paths of one episode; None where its environment has failed each time."""
        async with places:
            for number in range(1, self._tries + 1):
                try:
                    paths = await self._once(row)
                except _EnvironmentError as error:
                    cause = f"{type(error.__cause__).__name__}: {error.__cause__}"
                    _LOG.warning("episode %s: %s failed, try %d of %d: %s", name, error, number, self._tries, cause)
                    self._counts["again"] += number < self._tries
                else:
                    self._counts["episodes"] += 1
                    return paths
            _LOG.error("episode %s of the row %.200r is left out: its environment failed each time", name, row)
            self._counts["left_out"] += 1
            return None

    async def _once(self, row: Any) -> list[Path]:
        environment: Any = None
        try:
            environment = await _asked("make_environment", self._reset_timeout, self._make)
            first = await _asked("reset", self._reset_timeout, environment.reset, row)
            return await self._turns(environment, first)
        finally:
            if environment is not None:
                try:
                    await _asked("close", self._step_timeout, environment.close)
                except _EnvironmentError as error:
                    _LOG.warning("an environment's close failed: %r", error.__cause__)

    async def _turns(self, environment: Any, observation: Any) -> list[Path]:
        """Let the model and the environment take turns until the episode is over."""
        assert self._known is not None
        template, ends, params = self._known
        tools = list(getattr(environment, "tools", ()))
        if template is not None and tools:
            template = template.of({"tools": tools})
        paths, chat = Paths(template, ends), list[dict[str, Any]]()
        session = f"{id(environment):x}-{id(paths):x}"
        for _ in range(self._max_turns):
            path = _observed(paths, chat, observation, params)
            room = self._max_tokens - len(path.ids)
            if room < 1 and not path.stops and len(paths.all) == 1:
                raise ValueError(f"the first prompt has {len(path.ids)} tokens: use max_tokens above that")
            if room < 1:
                break
            limited = replace(params, max_new_tokens=min(params.max_new_tokens, room))
            answer = await submit(self._sampler.complete, [list(path.ids)], limited, session=session)
            ids, text = paths.wrote(path, answer, params)
            message, calls = ({}, ()) if template is None else read_message(template.tokenizer, text, tools)
            if chat:
                paths.remember(message, text)
                chat.append(message)
            action = Action(path.answer, ids, calls, path.stops[-1])
            observation, reward, done = await _asked("step", self._step_timeout, environment.step, action)
            path.rewards[-1] += float(reward)
            if done or observation is None:
                path.is_cut = done == "cut" or path.stops[-1] == "length"
                return paths.answered()
        return paths.answered(cut=True)


def _observed(paths: Paths, chat: list[dict[str, Any]], observation: Any, params: SamplingParams) -> Path:
    """The path that the model answers after an observation."""
    is_ids = isinstance(observation, list) and all(isinstance(one, int) for one in observation)
    if is_ids and not chat:
        return paths.of_ids(observation)
    if is_ids or paths.template is None:
        raise ValueError(
            "observations are texts and messages, for a sampler with a tokenizer and a chat template, or token ids in "
            f"the whole episode; got {observation!r:.80}"
        )
    chat += [{"role": "user", "content": observation}] if isinstance(observation, str) else observation
    return paths.of_chat(chat, params)


async def _asked(name: str, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
    """The result of a part of an environment; its errors, and its lateness, are the environment's."""
    try:
        return await asyncio.wait_for(awaited(function, *args), seconds)
    except Exception as error:
        raise _EnvironmentError(name) from error
