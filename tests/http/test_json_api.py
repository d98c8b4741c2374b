"""JSON: calls by the signatures, and errors as type and message."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    from tests.http.raw import Raw

pytestmark = pytest.mark.slow


def test_a_component_is_built_called_and_released(raw: Raw) -> None:
    adder = raw.new("Adder", start=3, remote_group="group", device_mesh={"dp_size": 2})
    assert raw.result(f"{adder}/add", amount=4) == 7
    assert raw.result(f"{adder}/add") == 8
    assert raw.result(f"{adder}/current") == 8
    assert raw.result(f"{adder}/everywhere") == [8, 8]
    assert raw.result(f"{adder}/lengths", texts=["a", "bb", "ccc"]) == [1, 2, 3]
    assert raw.result(f"{adder}/itself") == {"id": adder.partition("/")[2]}
    assert raw.ask("DELETE", f"{adder}") == (204, None)
    assert raw.error(f"{adder}/add")[:2] == (404, "Unknown")
    assert raw.ask("DELETE", f"{adder}")[0] == 404


def test_values_are_read_by_the_annotations(raw: Raw) -> None:
    adder, arrays, kinds = raw.new("Adder", names=["a"]), raw.new("Arrays"), raw.new("Kinds")
    sample = {"text": "abc", "weights": [1.5], "mood": "good"}
    assert raw.result(f"{adder}/later", sample=sample) == {"text": "ABC", "weights": [3.0], "mood": "bad"}
    assert raw.result(f"{arrays}/array", values=[[1, 2], [3, 4]]) == [[2.0, 4.0], [6.0, 8.0]]
    assert raw.result(f"{arrays}/tensor", values=[1, 2.5]) == [2.0, 3.5]
    few = {"mood": "good", "point": [1, 2]}
    assert raw.result(f"{kinds}/many", **few) == ["good", [1, 2.0], None, {}, 0, {}]
    more = {**few, "choice": "a", "table": {"x": 1}, "rest": {"z": 2}}
    assert raw.result(f"{kinds}/many", **more) == ["good", [1, 2.0], "a", {"x": 1.0}, 0, {"z": 2.0}]
    assert raw.result(f"{kinds}/floats") == [1.5, None, None]


def test_a_component_is_an_argument_by_its_id(raw: Raw) -> None:
    adder, other = raw.new("Adder"), raw.new("Adder", start=5)
    assert raw.result(f"{adder}/other", adder=other.partition("/")[2]) == 105
    assert raw.result(f"{other}/current") == 105
    assert raw.error(f"{adder}/other", {"adder": "none"})[:2] == (404, "Unknown")


def test_an_iterator_ends(raw: Raw) -> None:
    steps = raw.new("Steps", count=2)
    assert raw.result(f"{steps}/__len__") == 2
    for _ in range(2):
        assert raw.result(f"{steps}/__iter__") is None
        items = [raw.ask("POST", f"{steps}/__next__") for _ in range(3)]
        assert items == [(200, {"result": 0}), (200, {"result": 1}), (200, {"ended": True})]


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("add", {"amount": "4"}, "Expected `int`, got `str` - at `$.amount`"),
        ("add", {"amount": 1.5}, "Expected `int`"),
        ("add", {"amoun": 4}, "unknown field `amoun`"),
        ("fail", {}, "missing required field `why`"),
        ("lengths", {"texts": ["a", 5]}, r"Expected `str`, got `int` - at `$.texts[1]`"),
        ("later", {"sample": {"text": "a", "mood": "sad"}}, r"Invalid enum value 'sad' - at `$.sample.mood`"),
        ("later", {"sample": {"weights": []}}, "missing required field `text`"),
        ("add", [1], "Expected `object`, got `array`"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_the_call(raw: Raw, method: str, body: object, said: str) -> None:
    adder = raw.new("Adder")
    status, kind, message = raw.error(f"{adder}/{method}", body)
    assert (status, kind) == (400, "InvalidArguments") and said in message, message
    assert raw.result(f"{adder}/current") == 0


def test_what_json_does_not_express_is_refused_by_name(raw: Raw) -> None:
    kinds, arrays = raw.new("Kinds"), raw.new("Arrays")
    assert "JSON does not express a complex" in raw.error(f"{kinds}/hidden", {"value": 1})[2]
    for ragged in ([[1, 2], [3]], "x", {"a": 1}):
        assert raw.error(f"{arrays}/array", {"values": ragged})[:2] == (400, "InvalidArguments")
        assert raw.error(f"{arrays}/tensor", {"values": ragged})[:2] == (400, "InvalidArguments")
    assert "unknown field `more`" in raw.error(f"{kinds}/many", {"mood": "good", "point": [1], "more": [1]})[2]
    assert raw.error(f"{kinds}/strange")[:2] == (406, "NotJson")


def test_errors_are_type_message_and_request(raw: Raw) -> None:
    adder = raw.new("Adder")
    status, answer = raw.ask("POST", f"{adder}/fail", {"why": "no such key"})
    assert status == 500 and answer["error"].keys() == {"type", "message", "request"}
    assert (answer["error"]["type"], answer["error"]["message"]) == ("KeyError", "'no such key'")
    assert raw.error(f"{adder}/never")[:2] == (504, "CallTimeoutError")
    assert raw.error("Adder", {"remote_group": "none"})[:2] == (400, "PlacementError")
    assert raw.error("Adder", {"device_mesh": {"dp_size": 3}})[:2] == (400, "PlacementError")
    for mesh in (3, {"dp_size": "2"}, {"dp": 2}, {"dp_size": 0}):
        assert raw.error("Adder", {"device_mesh": mesh})[:2] == (400, "InvalidArguments")
    assert raw.error("Adder", {"remote_group": 5})[:2] == (400, "InvalidArguments")


def test_the_description_names_every_route_and_what_it_takes(raw: Raw) -> None:
    status, text = raw.request("GET", "/openapi.json")
    found = json.loads(text)
    assert status == 200 and found["openapi"] == "3.1.0"
    assert {"/v1/Adder", "/v1/Adder/{id}", "/v1/Adder/{id}/add", "/v1/Steps/{id}/__next__"} <= found["paths"].keys()
    assert not any("private" in path for path in found["paths"])
    body = found["components"]["schemas"]["Adder_fail"]
    assert body["required"] == ["why"] and body["properties"] == {"why": {"type": "string"}}
    named = re.findall(r'"#/components/schemas/([^"]*)"', json.dumps(found))
    assert named and {*named} <= found["components"]["schemas"].keys()
    adder = raw.new("Adder")
    for method in [path.rpartition("/")[2] for path in found["paths"] if path.startswith("/v1/Adder/{id}/")]:
        assert raw.ask("POST", f"{adder}/{method}", {"no such argument": 1})[0] in (400, 404)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
NAMES = ["amount", "texts", "sample", "values", "mood", "point", "choice", "table", "more", "value", "why"]
METHODS = [
    *(("Adder", name) for name in ("add", "lengths", "later", "current", "itself", "private", "everywhere")),
    *(("Arrays", name) for name in ("array", "tensor")),
    *(("Kinds", name) for name in ("many", "hidden", "floats")),
    ("Steps", "__next__"),
    ("Steps", "__len__"),
]


@pytest.fixture(scope="module")
def built(raw: Raw) -> dict[str, str]:
    steps = raw.new("Steps", count=10)
    raw.result(f"{steps}/__iter__")
    return {"Adder": raw.new("Adder"), "Arrays": raw.new("Arrays"), "Kinds": raw.new("Kinds"), "Steps": steps}


@settings(max_examples=80, deadline=None)
@given(
    call=st.sampled_from(METHODS),
    body=st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=8), ANY, max_size=3).map(json.dumps)
    | st.binary(max_size=40).map(lambda data: data.decode("latin-1"))
    | ANY.map(json.dumps),
)
def test_no_request_breaks_the_server(raw: Raw, built: dict[str, str], call: tuple[str, str], body: str) -> None:
    name, method = call
    status, answer = raw.ask("POST", f"{built[name]}/{method}", body.encode("utf-8"))
    assert status < 500, (call, body, answer)
    assert status == 200 or answer["error"]["type"], answer


@settings(max_examples=40, deadline=None)
@given(body=st.dictionaries(st.sampled_from(["start", "names", "remote_group", "device_mesh", "x"]), ANY, max_size=3))
def test_no_constructor_breaks_the_server(raw: Raw, body: dict[str, Any]) -> None:
    status, answer = raw.ask("POST", "Adder", json.dumps(body).encode())
    assert status in (201, 400), (body, answer)
    if status == 201:
        assert raw.ask("DELETE", f"Adder/{answer['id']}")[0] == 204
