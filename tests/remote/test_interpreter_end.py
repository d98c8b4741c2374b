"""What the garbage collector calls while the interpreter ends: a law over all packages, and a program that ends so."""

from __future__ import annotations

import ast
import builtins
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from twinkle_remote.interpreter_end import unless_ending

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("src/**/*.py")])
GUARD = "unless_ending"
DESTRUCTORS, REFERENCES = {"__del__"}, {"ref", "WeakMethod"}
_Function = ast.FunctionDef | ast.Lambda


def of_module(function: ast.AST, tree: ast.Module) -> set[str]:
    """The names of its module that a function reads."""
    names = {alias.asname or alias.name for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)
             for alias in node.names}  # fmt: skip
    names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    names |= {node.id for one in tree.body for node in ast.walk(one) if isinstance(one, ast.Assign | ast.AnnAssign)
              if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}  # fmt: skip
    return {node.id for node in ast.walk(function) if isinstance(node, ast.Name)} & names - set(dir(builtins))


def called_at_end(tree: ast.Module) -> Iterator[ast.AST]:
    """The functions that the garbage collector calls: destructors without the guard, callbacks of references."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in DESTRUCTORS:
            if not any(isinstance(one, ast.Name) and one.id == GUARD for one in node.decorator_list):
                yield from node.body
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in REFERENCES:
            for given in node.args[1:]:
                yield functions[given.id] if isinstance(given, ast.Name) else given


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import sys\nclass A:\n def __del__(self): sys.exit", {"sys"}),
        ("import sys\nclass A:\n @unless_ending\n def __del__(self): sys.exit", set()),
        ("import weakref\nkept = {}\ndef f(x): weakref.ref(x, lambda _: kept.pop(1))", {"kept"}),
        ("import weakref\nkept = {}\ndef f(x):\n known = kept\n weakref.ref(x, lambda _: known.pop(1))", set()),
        ("import weakref\nkept = {}\ndef f(x):\n def g(_): kept.pop(1)\n weakref.ref(x, g)", {"kept"}),
    ],
)
def test_the_law_finds_names_of_modules(text: str, found: set[str]) -> None:
    tree = ast.parse(text)
    assert set().union(*(of_module(one, tree) for one in called_at_end(tree))) == found


def test_what_runs_at_the_end_reads_no_name_of_its_module() -> None:
    seen, wrong = 0, []
    for path in FILES:
        text = path.read_text()
        if "__del__" in text or "weakref" in text:
            tree = ast.parse(text)
            functions = list(called_at_end(tree))
            seen += len(functions)
            wrong += [f"{path.relative_to(ROOT)}: {names}" for one in functions if (names := of_module(one, tree))]
    assert seen > 5 and not wrong, (
        f"decorate a __del__ with {GUARD}, bind what a callback uses to a local name: {wrong}"
    )


class Kept:
    """It is deleted in the moment of a Ctrl-C, in the midst of what its deletion does."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    @unless_ending
    def __del__(self) -> None:
        self.steps.append("begun")
        if len(self.steps) == 1:
            signal.raise_signal(signal.SIGINT)
        self.steps.append("done")


def test_ctrl_c_that_comes_in_a_deletion_reaches_the_program() -> None:
    kept = [Kept()]
    steps = kept[0].steps
    kept.clear()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        time.sleep(30)
    assert time.monotonic() - began < 15, "a wait ends"
    assert steps == ["begun", "begun", "done"], "what was interrupted is made again"


PROGRAM = """
import os
import sys

import twinkle_data
import twinkle_remote as twinkle
from twinkle_mesh import DeviceGroup

@twinkle.remote_class()
class Model:
    @twinkle.remote_function(dispatch="slice_dp", collect="flatten")
    def same(self, rows):
        return rows

    @twinkle.remote_function(dispatch="all")
    def items(self):
        yield from range(3)

if __name__ == "__main__":
    mode = sys.argv[1]
    twinkle.initialize(mode, groups=[DeviceGroup("two", 2, "CPU")] if mode == "threads" else None)
    model = twinkle.on("two").create(Model) if mode == "threads" else Model()
    loader = twinkle_data.DataLoader(list(range(8)), batch_size=2)
    stream = twinkle.stream(loader, model.same, ahead=2 if mode == "threads" else 0)
    items = model.items()
    # Modules that something holds are cleared in reverse order of their import, with sys as the last one: what `os`
    # holds is deleted when the names of later modules are None, and errors are still shown.
    sys.held = list(sys.modules.values())
    results = [twinkle.submit(model.same, [1, 2]), next(items), next(iter(stream))]
    os.kept = [model, loader, stream, model.items(), items, results]
    print("READY")
"""


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_a_program_whose_results_outlive_all_modules_ends_silently(mode: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    ended = subprocess.run(
        [sys.executable, "program.py", mode], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "READY\n", "")
