"""A stub of served classes: the same program without the server's modules, checked by mypy, whatever a server says."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinkle_http.stub.described import (
    DescribedClass,
    DescribedMethod,
    DescribedParameter,
    DescribedType,
    Description,
)
from twinkle_http.stub.source import source, stub_of
from twinkle_remote import serve, session
from twinkle_remote.conformance.subjects.served import served_classes
from twinkle_remote.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

FOLDER = Path(__file__).parents[1] / "plain"
ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tests" / "typing" / "mypy.ini"
MYPY = [sys.executable, "-m", "mypy", "--strict", f"--config-file={CONFIG}", "--no-error-summary"]
CACHE = ROOT / ".cache" / "mypy-typing"
TOKEN = "a token for tests"
SERVER = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from subjects import Adder, Arrays, Kinds, Steps, Twice
    from twinkle_mesh import DeviceGroup
    from twinkle_remote import serve, session

    with session("threads", groups=[DeviceGroup("group", 2, "CPU")]):
        with serve([Twice, Adder, Arrays, Kinds, Steps], port=0, token="a token for tests") as server:
            print(server.address, flush=True)
            sys.stdin.read()
"""
CLIENT = """
import sys
import api
import twinkle_remote as twinkle
from twinkle_mesh import DeviceMesh

assert "subjects" not in sys.modules
with twinkle.session("http", address=sys.argv[1], token="a token for tests"):
    adder = api.Adder(3, remote_group="group", device_mesh=DeviceMesh.from_sizes(dp_size=2))
    assert adder.add(4) == 7 and adder.current == 7 and adder.everywhere() == [7, 7]
    assert adder.lengths(["a", "bb", "ccc"]) == [1, 2, 3]
    sample = twinkle.get(adder.later(api.Sample("abc", [1.0])))
    assert sample == api.Sample("ABC", [2.0], api.Mood.BAD)
    itself = twinkle.get(adder.itself())
    assert isinstance(itself, api.Adder) and itself == adder
    assert adder.other(itself) == 107
    kinds = api.Kinds(remote_group="group")
    assert kinds.many(api.Mood.GOOD, api.Point(1), "a")[1] == api.Point(1, 0.0)
    steps = api.Steps(3, remote_group="group")
    assert len(steps) == 3 and twinkle.get(list(steps)) == [0, 1, 2]
    assert list(map(twinkle.get, adder.count(3))) == [0, 1, 2]
    twice = api.Twice(5, remote_group="group")
    assert isinstance(twice, api.Adder) and twice.own() == 10.0 and adder.other(twice) == 105
    try:
        twinkle.get(adder.fail("gone"))
    except KeyError as error:
        assert "KeyError: 'gone'" in str(error)
    else:
        raise AssertionError
    for wrong, said in (
        (lambda: api.Adder(), "build it with remote_group"),
        (lambda: adder.add(1, 2), "too many positional arguments"),
        (lambda: api.Adder(stop=1, remote_group="group"), "unexpected keyword argument 'stop'"),
        (lambda: adder.nothing, "Adder has add, count, count_when, current"),
    ):
        try:
            wrong()
        except (twinkle.TwinkleError, TypeError, AttributeError) as error:
            assert said in str(error), error
        else:
            raise AssertionError(said)
assert "subjects" not in sys.modules
print("done")
"""
TYPED = """
import api
from twinkle_mesh import DeviceMesh

adder = api.Adder(3, remote_group="group", device_mesh=DeviceMesh.from_sizes(dp_size=2))
number: int = adder.add(4)
lengths: list[int] = adder.lengths(["a"])
several: int | list[int] = adder.everywhere()
current: int = adder.current
kinds = api.Kinds(remote_group="group", instance_id="one")
kinds.many(api.Mood.BAD, api.Point(1), "b", {"a": 1.0}, 5, rest=2.0)
for step in api.Steps(3, remote_group="group"):
    item: int = step


async def wait() -> api.Sample:
    return await adder.later(api.Sample("text", mood=api.Mood.GOOD))


adder.add("4")  # refused
adder.nothing()  # refused
api.Adder("3", remote_group="group")  # refused
api.Adder(remote_grup="group")  # refused
kinds.many(api.Mood.BAD, api.Point(1), "c")  # refused
api.Sample(5)  # refused
text: str = adder.current  # refused
for one in adder.count(3):
    text = one  # refused
"""


@pytest.fixture(scope="module")
def address(serving: Callable[..., AbstractContextManager[str]]) -> Iterator[str]:
    with serving(SERVER, str(FOLDER)) as found:
        yield found


@pytest.fixture(scope="module")
def stub(address: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("client") / "api.py"
    path.write_text(stub_of(address, TOKEN), encoding="utf-8")
    return path


def without(text: str, name: str) -> str:
    """The stub without one class: mypy takes a minute to read what torch is."""
    head, _, rest = text.partition(f"\n\n@twinkle.remote_class()\nclass {name}:\n")
    _, _, tail = rest.partition(f"twinkle.register_type({name}, 'subjects.{name}')\n")
    assert tail
    return (head + tail).replace("    import numpy\n    import torch\n", "    pass\n")


@pytest.mark.slow
def test_a_program_without_the_servers_modules_uses_a_stub(address: str, stub: Path) -> None:
    command = [sys.executable, "-c", CLIENT, address]
    done = subprocess.run(command, cwd=stub.parent, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "done\n" and done.returncode == 0, done.stderr


@pytest.mark.slow
def test_mypy_checks_calls_by_the_stub(stub: Path, tmp_path: Path) -> None:
    text = stub.read_text(encoding="utf-8")
    assert "values: numpy.ndarray[Any, numpy.dtype[numpy.float32]]) -> numpy.ndarray[Any, Any]" in text
    assert "values: torch.Tensor) -> torch.Tensor" in text
    (tmp_path / "api.py").write_text(without(text, "Arrays"), encoding="utf-8")
    (tmp_path / "program.py").write_text(TYPED, encoding="utf-8")
    command = [*MYPY, f"--cache-dir={CACHE}", "program.py", "api.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    wrong = {int(line.split(":")[1]) for line in done.stdout.splitlines() if line.startswith("program.py:")}
    expected = {i for i, line in enumerate(TYPED.splitlines(), 1) if line.endswith("# refused")}
    assert wrong == expected and not re.search(r"^api\.py:.* error:", done.stdout, re.MULTILINE), done.stdout


def test_what_a_client_does_not_know_is_any_with_a_note(stub: Path) -> None:
    text = stub.read_text(encoding="utf-8")
    assert "# lock: Any: 'threading.Event'" in text
    assert "lock: Any = None, number: int = 1000, *, what: object = _default) -> float" in text
    assert "# value: Any: 'Missing'" in text
    assert "def share(self, value: fractions.Fraction) -> fractions.Fraction:" in text  # imported for checkers only
    assert "class Twice(Adder):" in text


def test_all_classes_of_the_public_suite_have_a_stub_and_a_description() -> None:
    with session("local"), serve(served_classes(), port=0, token=TOKEN) as server:
        text = stub_of(server.address, TOKEN)
        request = urllib.request.Request(f"{server.address}/openapi.json", headers={"authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            paths = json.load(answer)["paths"]
    check_harmless(text)
    compile(text, "api.py", "exec")
    assert len(re.findall("^class ", text, re.MULTILINE)) >= len(served_classes()) < len(paths)


def test_the_classes_need_a_token(address: str) -> None:
    with pytest.raises(BackendError, match="token is not known"):
        stub_of(address, "another token")


def described(**changes: Any) -> bytes:
    """A description of one class, with some parts changed."""
    given: dict[str, Any] = {
        "title": "Actor",
        "method": "go",
        "parameter": "x",
        "type": "int",
        "default": None,
        "text": "",
        "note": "",
        "name": "models.Actor",
        "kind": "dataclass",
        "options": {},
        "form": "plain",
        **changes,
    }
    parameter = DescribedParameter(
        given["parameter"], given["type"], given["note"], "POSITIONAL_OR_KEYWORD", given["default"]
    )
    method = DescribedMethod(
        given["method"],
        given["text"],
        False,
        given["form"],
        given["options"],
        [parameter],
        given["type"],
        given["note"],
    )
    cls = DescribedClass(
        given["name"], given["title"], given["text"], [], "all", 0, [parameter], ["remote_group"], [method]
    )
    field = (given["parameter"], given["type"], given["note"], given["default"])
    kind = DescribedType(
        given["name"], f"{given['title']}Sample", given["text"], given["kind"], [field], [("A", given["type"])]
    )
    return msgspec.json.encode(Description([cls], [kind]))


ALLOWED_CALLS = (
    "twinkle.NotInitializedError",
    "_at_server",
    "dataclass",
    "field",
    "twinkle.register_type",
    "twinkle.remote_class",
    "twinkle.remote_function",
)


def check_harmless(text: str) -> None:
    """Check that a module defines classes, and does nothing else."""
    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, ast.Lambda | ast.Delete | ast.Await | ast.While | ast.With | ast.Global), text
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) in ALLOWED_CALLS, ast.unparse(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert "os" not in ast.unparse(node).split() and "sys" not in ast.unparse(node).split()


EVIL = '__import__("os").system("true")'


@pytest.mark.parametrize("part", ["title", "method", "parameter", "kind"])
@pytest.mark.parametrize("text", [EVIL, "a b", "a\nb", "class", "", "__init__", "_x", "a#", "\u00e4", "int"])
def test_a_name_that_is_none_is_refused(part: str, text: str) -> None:
    if (part, text) in (("method", "int"), ("parameter", "int"), ("parameter", "_x")):
        check_harmless(source(described(**{part: text}), "http://h"))
        return
    if part == "parameter" and text == "__init__":
        return
    with pytest.raises(BackendError):
        source(described(**{part: text}), "http://h")


@pytest.mark.parametrize(
    "text",
    [EVIL, "int\n    import os", "(lambda: 5)()", "os.system", "list[__import__('os')]", "int if 1 else str", "x:=5"],
)
def test_a_type_a_default_or_a_text_runs_nothing(text: str) -> None:
    for part in ("type", "default", "text", "note", "name"):
        found = source(described(**{part: text}), f"http://h{text}")
        check_harmless(found)
    with pytest.raises(BackendError):
        source(described(options={text: 5}), "http://h")
    check_harmless(source(described(options={"collect": text, "split": [text]}), "http://h"))


ODD = ['"""', "'", "\\", "\r", "\x0c", "\u2028", "*", "f'{5}'", "-1", "'a' 'b'", "[1, {2: 3}]", "1 and 2"]


@given(
    part=st.sampled_from(["title", "method", "parameter", "type", "default", "text", "note", "name", "kind", "form"]),
    text=st.text(max_size=30)
    | st.sampled_from(
        ['"""', "'", "\\", "\r", "\x0c", "\u2028", "*", "f'{5}'", "-1", "'a' 'b'", "[1, {2: 3}]", "1 and 2"]
    ),
)
def test_no_description_makes_a_stub_that_does_more(part: str, text: str) -> None:
    try:
        found = source(described(**{part: text}), "http://h")
    except BackendError:
        return
    check_harmless(found)


@given(data=st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_what_is_no_description_is_an_error(data: bytes) -> None:
    with pytest.raises(BackendError):
        source(data, "http://h")
