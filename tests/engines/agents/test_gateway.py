"""The gateway, over OpenAI's wire format: what was sampled becomes rollouts, and strangers get nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import twinkle
from twinkle.engines import Gateway, SamplingParams, TransformersSampler, tiny_model
from twinkle_remote.errors import BackendError


def test_a_conversation_is_what_the_sampler_saw_and_strangers_get_nothing() -> None:
    config, tokenizer = tiny_model()
    params = SamplingParams(max_new_tokens=5, seed=1)
    with twinkle.session("local"), pytest.raises(BackendError, match="plain text"):
        Gateway(TransformersSampler(config, tokenizer=tokenizer, params=params), host="0.0.0.0")
    with twinkle.session("local"):
        sampler = TransformersSampler(config, tokenizer=tokenizer, params=params)
        with Gateway(sampler) as gateway, gateway.session(task=7) as session:

            def ask(key: str = session.key, path: str = "chat/completions", **request: Any) -> httpx.Response:
                headers = {"Authorization": f"Bearer {key}"}
                return httpx.post(f"{gateway.address}/v1/{path}", json=request, headers=headers, timeout=60.0)

            chat: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
            for _ in range(2):
                found = ask(messages=chat, logprobs=True).json()
                chat += [found["choices"][0]["message"], {"role": "user", "content": [{"type": "text", "text": "on"}]}]
            *events, done = [line[6:] for line in ask(messages=chat, n=2, stream=True).text.split("\n\n") if line]
            assert done == "[DONE]" and {json.loads(one)["choices"][0]["index"] for one in events} == {0, 1}
            row = session.rollouts(reward=2.5)
            for given, status in (
                ({"key": "wrong"}, 401),
                ({"key": f"{gateway.token}/other"}, 404),
                ({"path": "completions"}, 404),
                ({"messages": "hello"}, 400),
                ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, 400),
                ({"messages": chat, "max_tokens": 0}, 400),
            ):
                assert ask(**given).status_code == status
            assert session.rollouts().lengths == row.lengths
        assert row.column("task") == [7] and row.sequence_rewards().sum() == 2.5
        assert sum(len(one) for one in row.column("stops")) == 4 and set(row.column("episode")) == {0}
        first, start = row.ids[0].tolist(), int(row.column("mask")[0].nonzero()[0])
        assert (right := sampler.sample([first[:start]], params).ids[0].tolist()) == first[: len(right)]
