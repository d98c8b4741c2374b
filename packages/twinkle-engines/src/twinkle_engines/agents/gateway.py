"""Gateway: OpenAI's chat completions in front of a sampler, so that any agent is trained by its `base_url`.

Invariant: what was sampled for a session's key, and has reached the client, stands in its paths, token by token.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twinkle_engines.agents.episodes import read_message
from twinkle_engines.agents.paths import Paths, rollouts_of
from twinkle_engines.batches.chats import as_chat
from twinkle_remote import get, submit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from twinkle_engines.agents.paths import Path
    from twinkle_engines.batches.chats import Chat, Template
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.samplers.sampler import SamplingParams

_PARAMS = {"temperature": float, "top_p": float, "n": int, "seed": int, "max_tokens": int, "max_completion_tokens": int}


class Session(AbstractContextManager["Session"]):
    """The session of one agent, an episode. A context manager, which closes it.

    Attributes:
        key: The api_key of its client.
    """

    def __init__(self, gateway: Gateway, columns: dict[str, Any]) -> None:
        self._gateway, self._columns = gateway, columns
        self._name = secrets.token_urlsafe(12)
        self.key = f"{gateway.token}/{self._name}"
        self.paths = Paths(gateway.template, gateway.ends)
        gateway.sessions[self._name] = self

    def rollouts(self, reward: float | None = None) -> Rollouts:
        """The row of one episode with all that was sampled so far, and with the session's columns.

        Args:
            reward: Of the episode; it stands at the last token of the last answer. None: 0.
        """
        paths = self.paths.answered()
        row = rollouts_of([self._columns], [[paths]])
        return row.replace(rewards=[*[0.0] * (len(paths) - 1), float(reward)]) if paths and reward is not None else row

    def close(self) -> None:
        """Take no further requests; the rollouts stay."""
        self._gateway.sessions.pop(self._name, None)

    def __exit__(self, *error: object) -> None:
        self.close()


class Gateway(AbstractContextManager["Gateway"]):
    """A server of `/v1/chat/completions` and `/v1/models`, in a thread, behind the gate of twinkle-http.

    An answer is sampled as a whole; a stream has its parts at once. Requests of a key without a session are refused.

    Args:
        sampler: A sampler with a tokenizer and a chat template, or its handle.
        model: The name that clients ask for; any name is answered.
        host: Where it listens; beyond this machine it needs tls.
        port: Its port; 0 for a free one.
        token: The first part of each key; None makes one.
        tls: Files of the certificate and its key.

    Attributes:
        address: Such as "http://127.0.0.1:8000"; a client's base_url is this and "/v1".

    Raises:
        ModuleNotFoundError: twinkle-http is missing; the extra `agents` brings it.
        BackendError: The token would be sent in plain text to another machine.
        ValueError: The sampler has no tokenizer.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        model: str = "twinkle",
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        tls: tuple[str, str] | None = None,
    ) -> None:
        import uvicorn

        from twinkle_http import Gate, Tokens, check_encrypted  # of the extra `agents`

        class Keys(Tokens):
            def tenant(self, header: bytes) -> str | None:
                return super().tenant(header.partition(b"/")[0])  # a key is the token, and a session

        check_encrypted(f"host={host!r}", host, tls is not None, False, "give tls=(certificate, key)")
        self._sampler, self._model = sampler, model
        template, self.ends = get(sampler.template())
        self._params: SamplingParams = get(sampler.own_params())
        if template is None:
            raise ValueError("a gateway needs a sampler with a tokenizer: use tokenizer= of it")
        self.template: Template = template
        self.token = (tokens := Keys(token)).only()
        self.sessions: dict[str, Session] = {}
        self._socket = socket.create_server((host, port), backlog=512)
        self.address = f"{'https' if tls else 'http'}://{host}:{self._socket.getsockname()[1]}"
        files: dict[str, Any] = dict(zip(("ssl_certfile", "ssl_keyfile"), tls or (), strict=False))
        off: dict[str, Any] = {"lifespan": "off", "ws": "none", "log_config": None, "access_log": False}
        self._server = uvicorn.Server(uvicorn.Config(Gate(self._answer, tokens), **off, **files))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve([self._socket])), daemon=True)
        self._thread.start()

    def session(self, **columns: Any) -> Session:
        """A session, whose columns go with its row of rollouts."""
        return Session(self, columns)

    def close(self) -> None:
        """Stop; waits for answers that are under way."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        from twinkle_http import RefusedError, read_body  # as above

        key = scope["state"]["headers"].get(b"authorization", b"").partition(b"/")[2].decode("ascii", "replace")
        match scope["method"], scope["path"]:
            case "GET", "/v1/models":
                one = {"id": self._model, "object": "model", "created": 0, "owned_by": "twinkle"}
                await _send(send, b"application/json", [json.dumps({"object": "list", "data": [one]})])
            case "POST", "/v1/chat/completions":
                if (session := self.sessions.get(key)) is None:
                    raise RefusedError(404, "there is no session of this key", "Unknown")
                body = bytes(await read_body(scope, receive, 64 << 20))
                call = asyncio.ensure_future(self._complete(session, body))
                gone = asyncio.ensure_future(receive())  # nothing more comes but the client's end
                await asyncio.wait({call, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    call.cancel()
                    raise RefusedError(400, "the client went away", "Gone")
                gone.cancel()
                try:
                    request, made = call.result()
                except (AttributeError, TypeError, ValueError) as error:
                    raise RefusedError(400, str(error), "invalid_request_error") from error
                streams = request.get("stream")
                parts = _events(made, request) if streams else [json.dumps(made)]
                await _send(send, b"text/event-stream" if streams else b"application/json", parts)
            case _:
                raise RefusedError(404, f"there is no {scope['path'][:80]!a}", "Unknown")

    async def _complete(self, session: Session, body: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """Sample what a request asks for, note it in the session, and write it as OpenAI does."""
        request = json.loads(body)
        chat, params = _chat(request.get("messages")), _params(request, self._params)
        paths = session.paths
        paths.template = template = self.template.of({"tools": request.get("tools")})
        chat = template.fitted(chat)
        path = paths.of_chat(chat, params)
        prompt = list(path.ids)
        answers = await submit(self._sampler.complete, [prompt], params, session=session.key)
        paths.template = template  # requests of one session may be at work at once
        choices, written = [], 0
        for number in range(params.n):
            path = paths.of_chat(chat, params) if number else path  # another answer to the same chat
            choices.append(_choice(paths, path, answers, number, params, request))
            written += len(path.ids) - len(prompt)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": written, "total_tokens": len(prompt) + written}
        made = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "choices": choices}
        made |= {"object": "chat.completion", "model": str(request.get("model") or self._model), "usage": usage}
        return request, made


def _chat(messages: Any) -> Chat:
    """The messages of a request, with texts as contents.

    Raises:
        ValueError: There are none, or parts that are no texts.
    """
    chat = as_chat(messages)
    if chat is None:
        raise ValueError("messages is a list of messages with a role and a content")
    for turn in chat:
        content = turn.get("content") or ""
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if strange := [part for part in parts if part.get("type") != "text"]:
            raise ValueError(f"contents are texts, got a part of the type {strange[0].get('type')!r:.60}")
        turn["content"] = "".join(str(part["text"]) for part in parts)
    return chat


def _params(request: dict[str, Any], own: SamplingParams) -> SamplingParams:
    """The parameters of a request; what it does not say is the sampler's own, with one answer."""
    given: dict[str, Any] = {name: of(request[name]) for name, of in _PARAMS.items() if request.get(name) is not None}
    most = [given.pop(name) for name in ("max_tokens", "max_completion_tokens") if name in given]
    if most:
        given["max_new_tokens"] = min(most)
    return replace(own, **{"n": 1, "stop": request.get("stop") or own.stop, **given})


def _choice(
    paths: Paths, path: Path, answers: Rollouts, number: int, params: SamplingParams, request: dict[str, Any]
) -> dict[str, Any]:
    """One answer, which is taken into its path, as a choice."""
    assert paths.template is not None
    tokenizer, count = paths.template.tokenizer, len(path.ids)
    ids, text = paths.wrote(path, answers, params, number)
    message, calls = read_message(tokenizer, text, request.get("tools") or [])
    if not message.get("tool_calls") and message.keys() == {"role", "content"}:
        message["content"] = path.answer
    finish = path.stops[-1]
    if message.get("tool_calls"):
        finish = "tool_calls"
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{secrets.token_hex(12)}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments))},
            }
            for call in calls
        ]
    paths.remember(message, text)
    made: dict[str, Any] = {"index": number, "message": message, "finish_reason": finish, "logprobs": None}
    if request.get("logprobs"):
        texts = [str(tokenizer.decode([one])) for one in ids]
        made["logprobs"] = {
            "content": [
                {"token": token, "logprob": logprob, "bytes": [*token.encode()], "top_logprobs": []}
                for token, logprob in zip(texts, path.logprobs[count:], strict=True)
            ]
        }
    return made


def _events(made: dict[str, Any], request: dict[str, Any]) -> Iterator[str]:
    """An answer as server-sent events: each choice's message at once, then why it ended."""
    about = {name: made[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}

    def event(choices: list[dict[str, Any]], **more: Any) -> str:
        return f"data: {json.dumps({**about, 'choices': choices, **more})}\n\n"

    for choice in made["choices"]:
        delta, index = dict(choice["message"]), choice["index"]
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
        yield event([{"index": index, "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}])
        yield event([{"index": index, "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}])
    if (request.get("stream_options") or {}).get("include_usage"):
        yield event([], usage=made["usage"])
    yield "data: [DONE]\n\n"


async def _send(send: Any, kind: bytes, parts: Iterable[str]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    for part in parts:
        await send({"type": "http.response.body", "body": part.encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})
