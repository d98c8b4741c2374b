"""A call of a client that does not know yet that another worker has a served rank does not reach that worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = """
    import os, signal, time, urllib.request

    import msgspec
    import twinkle
    from twinkle import DeviceGroup, remote_class, remote_function
    from twinkle_remote.values import TYPES
    from twinkle_http.wire.decode import decode
    from twinkle_http.wire.encode import encode
    from twinkle_http.wire.envelopes import CALL_UPDATE, UPDATE_ANSWER, unpacked

    TOKEN = "a token for tests"

    @remote_class()
    class Model:
        @remote_function(dispatch="all", collect="none")
        def pids(self) -> int:
            return os.getpid()

        @remote_function(dispatch="all", collect="first")
        def items(self):
            yield from range(1000)

    class Client:
        def __init__(self, address):
            self.address, self.name, self.count = f"{address}/twinkle/1", "", 0
            self.name = decode([self.post("open", {})], TYPES)["client"]

        def post(self, path, value):
            body = encode(value, TYPES).to_bytes()
            headers = {"authorization": f"Bearer {TOKEN}", "twinkle-client": self.name}
            if path == "call":
                self.count += 1
                headers["twinkle-request"] = str(self.count)
            request = urllib.request.Request(f"{self.address}/{path}", body, headers)
            with urllib.request.urlopen(request, timeout=60.0) as answer:
                return answer.read()

        def updates(self):
            return unpacked(self.post("updates", {"after": 0, "seconds": 1.0}), UPDATE_ANSWER).updates

        def call(self, **request):
            given = {"group": "two", "instance": "it", "args": [], "kwargs": {}, "line": "x.py:1", **request}
            first, until = unpacked(self.post("call", given), CALL_UPDATE), time.monotonic() + 60.0
            told = [first]
            while not told[-1].done:
                assert time.monotonic() < until and first.refused is None and first.unsent is None, told
                told = [first, *(one for _, one in self.updates() if one.name == first.name)]
            assert told[-1].error is None, told
            told[-1].ranks = sorted((rank for one in told for rank in one.ranks), key=lambda rank: rank.figures)
            return told[-1]

        def on_ranks(self, ranks, read, kind="method", target="pids"):
            return self.call(kind=kind, target=target, by_rank=True, ranks=ranks, read=read).ranks

        def value(self, name):
            with urllib.request.urlopen(urllib.request.Request(f"{self.address}/values/{name}", headers={
                "authorization": f"Bearer {TOKEN}", "twinkle-client": self.name,
            }), timeout=60.0) as answer:
                return decode([answer.read()], TYPES)

    with twinkle.session("ray", groups=[DeviceGroup("two", 2, "CPU")], restart="group"):
        with twinkle.serve([Model], port=0, token=TOKEN) as server:
            client, other = Client(server.address), Client(server.address)
            client.call(kind="create", target="__main__.Model")
            other.call(kind="create", target="__main__.Model", instance="other")
            pids = client.value(client.call(kind="method", target="pids").name)
            assert [one.failure for one in client.on_ranks([0, 1], 0)] == [None, None]
            opened = client.call(kind="generate", target=["items", "key"], by_rank=True)
            assert client.on_ranks([1], 0, "item", "key")[0].failure is None
            os.kill(pids[1], signal.SIGKILL)
            until = time.monotonic() + 60.0
            while client.on_ranks([1], 0)[0].failure is None:
                assert time.monotonic() < until
            other.call(kind="restart", ranks=[1], instance="other")

            (told,) = client.on_ranks([1], 0)
            assert told.failure is not None, "a call for the first worker has reached the second one"
            label, _, kind, why, *_, died, unanswered, upstream, _ = told.failure
            assert (label, kind, died, upstream) == ("two[1/2]", "WorkerDiedError", True, False), told
            assert "another worker has its rank" in why
            first, second = client.on_ranks([0, 1], 0)
            assert first.failure[-2] and second.failure[6], "no rank of the call was called"
            assert client.on_ranks([1], 0, "item", "key")[0].failure[2:4] == [kind, why]
            assert client.on_ranks([0], 0)[0].failure is None, "the others go on"

            (number,) = (number for number, one in client.updates() if one.restarted == ["two", 1])
            assert client.on_ranks([1], number - 1)[0].failure is not None
            assert client.on_ranks([0, 1], number)[1].failure is None
            fresh = client.value(client.call(kind="method", target="pids").name)
            assert fresh[0] == pids[0] and fresh[1] != pids[1]
            request = dict(kind="ping", ranks=[1], by_rank=True)
            assert other.call(**request, instance="other").ranks[0].failure is None, "asking is no such call"
            assert Client(server.address).call(kind="create", target="__main__.Model", instance="new").done
        print("done")
"""


@pytest.mark.ray
def test_a_call_for_an_earlier_worker_does_not_reach_the_one_in_its_place(joined_program: Callable[..., Any]) -> None:
    assert "done" in joined_program(PROGRAM, OMP_NUM_THREADS="1").finish(timeout=200)
