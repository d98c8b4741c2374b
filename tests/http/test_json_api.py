"""JSON: calls by the signatures, and errors as type and message."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

pytestmark = pytest.mark.slow

SUBJECTS = (Path(__file__).parent / "json_subjects.py").read_text(encoding="utf-8")
ONE, TWO = "token number one", "token number two"


class Api:
    """Requests in JSON over one connection."""

    def __init__(self, address: str) -> None:
        self.place = urlsplit(address).netloc
        self._connection = http.client.HTTPConnection(self.place, timeout=60.0)

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: object = None, token: str = ONE) -> tuple[int, Any]:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Authorization": f"Bearer {token}"})
        with self._connection.getresponse() as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else None

    def post(self, path: str, body: object = None, token: str = ONE) -> tuple[int, Any]:
        return self.send("POST", f"/v1/{path}", body, token)

    def build(self, name: str, **keywords: Any) -> str:
        status, answer = self.post(name, keywords)
        assert status == 201, answer
        return f"{name}/{answer['id']}"

    def result(self, path: str, **keywords: Any) -> Any:
        status, answer = self.post(path, keywords)
        assert status == 200, answer
        return answer["result"]

    def error(self, path: str, body: object = None, token: str = ONE) -> tuple[int, str, str]:
        status, answer = self.post(path, body, token)
        return status, answer["error"]["type"], answer["error"]["message"]


@pytest.fixture(scope="module")
def address(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serving(SUBJECTS, "60") as found:
        yield found


@pytest.fixture(scope="module")
def api(address: str) -> Iterator[Api]:
    with contextlib.closing(Api(address)) as found:
        yield found


def test_a_component_is_built_called_and_released(api: Api) -> None:
    adder = api.build("Adder", start=3, remote_group="group", device_mesh={"dp_size": 2})
    assert api.result(f"{adder}/add", amount=4) == 7
    assert api.result(f"{adder}/add") == 8
    assert api.result(f"{adder}/current") == 8
    assert api.result(f"{adder}/everywhere") == [8, 8]
    assert api.result(f"{adder}/lengths", texts=["a", "bb", "ccc"]) == [1, 2, 3]
    assert api.result(f"{adder}/itself") == {"id": adder.partition("/")[2]}
    assert api.send("DELETE", f"/v1/{adder}") == (204, None)
    assert api.error(f"{adder}/add")[:2] == (404, "Unknown")
    assert api.send("DELETE", f"/v1/{adder}")[0] == 404


def test_values_are_read_by_the_annotations(api: Api) -> None:
    adder, arrays, kinds = api.build("Adder", names=["a"]), api.build("Arrays"), api.build("Kinds")
    sample = {"text": "abc", "weights": [1.5], "mood": "good"}
    assert api.result(f"{adder}/later", sample=sample) == {"text": "ABC", "weights": [3.0], "mood": "bad"}
    assert api.result(f"{arrays}/array", values=[[1, 2], [3, 4]]) == [[2.0, 4.0], [6.0, 8.0]]
    assert api.result(f"{arrays}/tensor", values=[1, 2.5]) == [2.0, 3.5]
    few = {"mood": "good", "point": [1, 2]}
    assert api.result(f"{kinds}/many", **few) == ["good", [1, 2.0], None, {}, 0, {}]
    more = {**few, "choice": "a", "table": {"x": 1}, "rest": {"z": 2}}
    assert api.result(f"{kinds}/many", **more) == ["good", [1, 2.0], "a", {"x": 1.0}, 0, {"z": 2.0}]
    assert api.result(f"{arrays}/mixed", values=[1]) == "list"
    assert api.result(f"{kinds}/missing", value=[{"a": 1}]) == [{"a": 1}]  # of a name for type checkers only
    assert api.result(f"{kinds}/floats") == [1.5, None, None]


def test_a_component_is_an_argument_by_its_id(api: Api) -> None:
    adder, other = api.build("Adder"), api.build("Adder", start=5)
    assert api.result(f"{adder}/other", adder=other.partition("/")[2]) == 105
    assert api.result(f"{other}/current") == 105
    assert api.error(f"{adder}/other", {"adder": "none"})[:2] == (404, "Unknown")


def test_an_iterator_ends(api: Api) -> None:
    steps = api.build("Steps", count=2)
    assert api.result(f"{steps}/__len__") == 2
    for _ in range(2):
        assert api.result(f"{steps}/__iter__") is None
        items = [api.post(f"{steps}/__next__") for _ in range(3)]
        assert items == [(200, {"result": 0}), (200, {"result": 1}), (200, {"ended": True})]


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("add", {"amount": "4"}, "Expected `int`, got `str` - at `$.amount`"),
        ("add", {"amount": 1.5}, "Expected `int`"),
        ("add", {"amount": None}, "Expected `int`"),
        ("add", {"amoun": 4}, "unknown field `amoun`"),
        ("add", {"self": 4}, "unknown field `self`"),
        ("fail", {}, "missing required field `why`"),
        ("lengths", {"texts": ["a", 5]}, r"Expected `str`, got `int` - at `$.texts[1]`"),
        ("later", {"sample": {"text": "a", "mood": "sad"}}, r"Invalid enum value 'sad' - at `$.sample.mood`"),
        ("later", {"sample": {"weights": []}}, "missing required field `text`"),
        ("add", [1], "Expected `object`, got `array`"),
        ("add", b"{", "Input data was truncated"),
        ("add", b'{"amount": 1e999}', "out of range"),
        ("add", b"\xff", "malformed"),
        ("add", b"[" * 50_000, "Expected `object`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_call(api: Api, method: str, body: object, said: str) -> None:
    adder = api.build("Adder")
    status, kind, message = api.error(f"{adder}/{method}", body)
    assert (status, kind) == (400, "InvalidArguments") and said in message, message
    assert api.result(f"{adder}/current") == 0


def test_what_json_does_not_express_is_refused_by_name(api: Api) -> None:
    kinds, arrays = api.build("Kinds"), api.build("Arrays")
    assert "JSON does not express a complex" in api.error(f"{kinds}/hidden", {"value": 1})[2]
    for ragged in ([[1, 2], [3]], "x", {"a": 1}):
        assert api.error(f"{arrays}/array", {"values": ragged})[:2] == (400, "InvalidArguments")
        assert api.error(f"{arrays}/tensor", {"values": ragged})[:2] == (400, "InvalidArguments")
    assert "unknown field `more`" in api.error(f"{kinds}/many", {"mood": "good", "point": [1], "more": [1]})[2]
    assert api.error(f"{kinds}/strange")[:2] == (406, "NotJson")


def test_errors_are_type_message_and_request(api: Api) -> None:
    adder = api.build("Adder")
    status, answer = api.post(f"{adder}/fail", {"why": "no such key"})
    assert status == 500 and answer["error"].keys() == {"type", "message", "request"}
    assert (answer["error"]["type"], answer["error"]["message"]) == ("KeyError", "'no such key'")
    assert api.error(f"{adder}/never")[:2] == (504, "CallTimeoutError")
    assert api.error("Adder", {"remote_group": "none"})[:2] == (400, "PlacementError")
    assert api.error("Adder", {"device_mesh": {"dp_size": 3}})[:2] == (400, "PlacementError")
    for mesh in (3, {"dp_size": "2"}, {"dp": 2}, {"dp_size": 0}):
        assert api.error("Adder", {"device_mesh": mesh})[:2] == (400, "InvalidArguments")
    assert api.error("Adder", {"remote_group": 5})[:2] == (400, "InvalidArguments")


def test_the_description_names_every_route_and_what_it_takes(api: Api) -> None:
    status, found = api.send("GET", "/openapi.json")
    assert status == 200 and found["openapi"] == "3.1.0"
    assert {"/v1/Adder", "/v1/Adder/{id}", "/v1/Adder/{id}/add", "/v1/Steps/{id}/__next__"} <= found["paths"].keys()
    assert not any("private" in path for path in found["paths"])
    body = found["components"]["schemas"]["Adder_fail"]
    assert body["required"] == ["why"] and body["properties"] == {"why": {"type": "string"}}
    named = re.findall(r'"#/components/schemas/([^"]*)"', json.dumps(found))
    assert named and {*named} <= found["components"]["schemas"].keys()
    adder = api.build("Adder")
    for method in [path.rpartition("/")[2] for path in found["paths"] if path.startswith("/v1/Adder/{id}/")]:
        assert api.post(f"{adder}/{method}", {"no such argument": 1})[0] in (400, 404)


def test_what_one_tenant_has_is_unknown_to_another(api: Api) -> None:
    adder = api.build("Adder")
    foreign, unknown = (api.error(f"Adder/{id_}/add", {}, TWO) for id_ in (adder.partition("/")[2], "f" * 16))
    assert foreign[:2] == unknown[:2] == (404, "Unknown")
    assert foreign[2].replace(adder.partition("/")[2], "") == unknown[2].replace("f" * 16, "")
    assert api.send("DELETE", f"/v1/{adder}", None, TWO)[0] == 404
    mine = api.post("Adder", {}, TWO)[1]["id"]
    assert api.error(f"Adder/{mine}/other", {"adder": adder.partition("/")[2]}, TWO)[:2] == (404, "Unknown")
    assert api.post(f"{adder}/add", {}, "no token at all")[0] == 401


def test_only_what_is_served_is_called(api: Api) -> None:
    adder = api.build("Adder")
    for method in ("private", "__init__", "__class__", "__reduce__", "total", "__len__", "add.x", "%2e%2e"):
        assert api.error(f"{adder}/{method}")[:2] == (403, "NotServed"), method
    for name in ("os.system", "Sample", "builtins.eval", "Point"):
        assert api.error(name)[:2] == (403, "NotServed")
    assert api.error(f"Kinds/{adder.partition('/')[2]}/floats")[:2] == (404, "Unknown")
    assert api.send("GET", f"/v1/{adder}")[0] == 404
    assert api.send("GET", "/v1")[0] == 404


def test_a_component_that_nobody_calls_is_released(serving: Callable[..., AbstractContextManager[str]]) -> None:
    with serving(SUBJECTS, "0.3") as address, contextlib.closing(Api(address)) as api:
        idle, busy = api.build("Adder"), api.build("Adder")
        status, until = 200, time.monotonic() + 60.0
        began = time.monotonic()
        while status == 200 and time.monotonic() < until:
            assert api.result(f"{busy}/add") > 0
            time.sleep(0.05)  # often enough, and not a core for itself
            if time.monotonic() - began > 4.0:
                status = api.post(f"{idle}/add")[0]
                began = time.monotonic()
        assert status == 404
        assert api.post(f"{busy}/add")[0] == 200


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["amount", "texts", "sample", "values", "mood", "point", "choice", "table", "more", "value", "why"]
METHODS = [
    *(("Adder", name) for name in ("add", "lengths", "later", "current", "itself", "private", "everywhere")),
    *(("Arrays", name) for name in ("array", "tensor", "mixed")),
    *(("Kinds", name) for name in ("many", "missing", "hidden", "floats")),
    ("Steps", "__next__"),
    ("Steps", "__len__"),
]


@pytest.fixture(scope="module")
def built(api: Api) -> dict[str, str]:
    steps = api.build("Steps", count=10)
    api.result(f"{steps}/__iter__")
    return {"Adder": api.build("Adder"), "Arrays": api.build("Arrays"), "Kinds": api.build("Kinds"), "Steps": steps}


@settings(max_examples=80, deadline=None)
@given(
    call=st.sampled_from(METHODS),
    body=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), ANY, max_size=3).map(json.dumps)
    | st.binary(max_size=40).map(lambda data: data.decode("latin-1"))
    | ANY.map(json.dumps),
)
def test_no_request_breaks_the_server(api: Api, built: dict[str, str], call: tuple[str, str], body: str) -> None:
    name, method = call
    status, answer = api.post(f"{built[name]}/{method}", body.encode("utf-8"))
    assert status < 500, (call, body, answer)
    assert status == 200 or answer["error"]["type"], answer


@settings(max_examples=40, deadline=None)
@given(body=st.dictionaries(st.sampled_from(["start", "names", "remote_group", "device_mesh", "x"]), ANY, max_size=3))
def test_no_constructor_breaks_the_server(api: Api, body: dict[str, Any]) -> None:
    status, answer = api.post("Adder", json.dumps(body).encode())
    assert status in (201, 400), (body, answer)
    if status == 201:
        assert api.send("DELETE", f"/v1/Adder/{answer['id']}")[0] == 204


@settings(deadline=None)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=5))
def test_an_array_comes_back(api: Api, built: dict[str, str], numbers: list[float]) -> None:
    finite = [number for number in numbers if math.isfinite(number) and abs(number) < 1e30]
    assert api.result(f"{built['Arrays']}/array", values=finite) == [2 * number for number in finite]
