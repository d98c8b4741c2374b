"""Environment: what an agent acts in, and the actions that are read from what a model wrote.

Any object with the methods `reset`, `step` and `close` is one; the class has them all, for what is left out.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
