"""The laws of the house, read off the source of all packages; `python -m tests.test_house` prints what is left of each.

What breaks a law today stands in `LEFT`, by the name of its file: a list that may only shrink.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from tests.test_imports import PACKAGES, ROOT, imports, modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.test_imports import Module

LIBRARIES = ("accelerate", "datasets", "numpy", "peft", "ray", "torch", "transformers", "uvicorn", "vllm")
MOST_MODULES = 16
FEW_LINES = 40
_PRIVATE_TEXT = re.compile(rf"(?:{'|'.join(LIBRARIES)})(?:\.\w+)*\._[a-zA-Z]\w*(?:\.\w+)*")
_CHANGES = {
    *(f"gc.{name}" for name in ("disable", "freeze", "set_threshold", "unfreeze")),
    *(f"torch.set_{name}" for name in ("default_device", "default_dtype", "default_tensor_type", "num_threads")),
    *(f"os.environ.{name}" for name in ("clear", "pop", "setdefault", "update")),
    *("numpy.seterr", "numpy.set_printoptions", "os.putenv", "os.unsetenv", "signal.signal", "sys.setrecursionlimit"),
}
_NO_SUBJECT = re.compile(r"(?:What|Which|How|As|Nothing)\b")
_DIALECT = re.compile(
    r"\b(?:would do\b(?! [a-z])|as (?:it|they) lies?\b|in earnest\b|as ever\b|dear(?:er|est)\b|tells? of\b"
    r"|(?:is|are|was|were|be) told\b|mend(?:s|ed)?\b)"
)
"""Words of a dialect, where a colleague says "use", "in place", "report", "fix", "more expensive"."""
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_STATE = {"os.environ", "os.environb", "sys.executable", "sys.stderr", "sys.stdout"}
OWN_PROCESSES = {
    "rank_actor": "a worker, at its start",
    "server": "the fork server, a process of its own",
    "forked": "a process that the fork server has made",
    "whole_lines": "a worker, at its start",
}
"""Files whose code runs in processes of ours: what these set, no program of a user sees."""
INTERNALS = {"python_internals", "ray_internals", "torch_internals", "uvicorn_internals"}
"""Files that may use private names of a library, with the reason of each."""
LEFT: dict[str, list[str]] = {
    "private names stand in one file for each library": [
        "definitions: sys.modules",
        "delivery: torch.utils.data._utils.pin_memory.pin_memory",
        "interpreter: torch._dynamo",
        "process_start: torch._C",
    ],
    "the user's process is left alone": [
        "collector: gc.disable",
        "collector: gc.freeze",
        "collector: gc.unfreeze",
        "device_probes: os.environ.setdefault",
        "exit_status: sys.stderr",
        "exit_status: sys.stdout",
        "process_start: gc.disable",
        "process_start: gc.freeze",
        "seeding: gc.disable",
        "serve: signal.signal",
        "token_file: os.environ.pop",
        "vllm_loop: os.environ.setdefault",
    ],
    "no hasattr or getattr on a protocol": [
        "adapters: getattr value",
        "checkpoint_facts: getattr size",
        "dispatching: getattr name",
        "endpoint: getattr weights",
        "fingerprint: getattr fingerprint",
        "fingerprint_types: hasattr columns",
        "fingerprint_types: hasattr take",
        "marks: hasattr state_dict",
        "objects: hasattr value",
        "rows: getattr valid",
        "streams: getattr load_state_dict",
        "streams: getattr state_dict",
    ],
    "a folder has at most 16 modules": [],
    "a module under 40 lines has two importers": [
        *("error_by_value", "plain_output", "restarting"),
    ],
    "a docstring opens with its subject": [],
    "prose uses the field's words": [],
    "no class name in two modules": [],
}


def alias_names(module: Module) -> dict[str, str]:
    """Return what the names of a module that it has imported stand for."""
    found: dict[str, str] = {}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            first = {alias.name.partition(".")[0] for alias in node.names if not alias.asname}
            found.update({name: name for name in first})
            found.update({alias.asname: alias.name for alias in node.names if alias.asname})
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return found


def dotted(node: ast.AST, aliases: dict[str, str]) -> str | None:
    """Return the full name that an expression of names and attributes stands for."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id)
    if isinstance(node, ast.Attribute):
        base = dotted(node.value, aliases)
        return base and f"{base}.{node.attr}"
    return None


def private_names(module: Module) -> Iterator[str]:
    """Yield private names of libraries and of Python that a module uses."""
    aliases = alias_names(module)
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node, aliases) or ""]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names = [node.value]
        else:
            continue
        for name in names:
            if _PRIVATE_TEXT.fullmatch(name) or name.partition(".")[0] == "ctypes":
                yield name
    for target in targets(module):
        if isinstance(target, ast.Subscript) and dotted(target.value, aliases) == "sys.modules":
            yield "sys.modules"
        elif dotted(target, aliases) == "sys.executable":
            yield "sys.executable"


def targets(module: Module) -> Iterator[ast.expr]:
    """Yield what a module assigns to or deletes."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign | ast.Delete):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else (target,)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target


def changes_of_the_process(module: Module) -> Iterator[str]:
    """Yield what a module changes for its whole process."""
    aliases = alias_names(module)
    for node in ast.walk(module.tree):
        name = dotted(node.func, aliases) if isinstance(node, ast.Call) else None
        if name in _CHANGES:
            yield str(name)
    for target in targets(module):
        held = target.value if isinstance(target, ast.Subscript) else target
        if (name := dotted(held, aliases)) in _STATE:
            yield str(name)


@cache
def members_of_protocols() -> frozenset[str]:
    """Return the names of the members of all protocols of these packages."""
    found: set[str] = set()
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                found.update(
                    each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
    return frozenset(name for name in found if not name.startswith("__"))


def looks_for_members(module: Module) -> Iterator[str]:
    """Yield `hasattr` and `getattr` of a protocol's members."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in members_of_protocols():
                yield f"{node.func.id} {name.value}"


def docstrings_without_a_subject(module: Module) -> Iterator[str]:
    """Yield what has a docstring that opens with a question word, in place of what it is or does."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            if _NO_SUBJECT.match(text):
                yield getattr(node, "name", "the module")


def dialect(module: Module) -> Iterator[str]:
    """Yield words of the dialect in the docstrings and texts of a module; "what would do" is one: errors say "use"."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from _DIALECT.findall(node.value)


def dialect_of_pages() -> set[str]:
    """Return `page: word` of each word of the dialect on the pages, outside of blocks of code and of errors' texts."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")]
    found: set[str] = set()
    for page in pages:
        if page.name != "CHANGELOG.md":
            prose = _CODE.sub("", page.read_text(encoding="utf-8"))
            found.update(f"{page.stem}: {word}" for word in _DIALECT.findall(prose))
    return found


def twins() -> set[str]:
    """Return the names of classes that stand in two modules; subjects of the conformance suite are named freely."""
    found: dict[str, set[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and ".conformance." not in module.name:
                found.setdefault(node.name, set()).add(module.name)
    return {name for name, places in found.items() if len(places) > 1}


def of_modules(law: Callable[[Module], Iterator[str]], allowed: set[str]) -> set[str]:
    """Return `file: what` of each break of a law, outside of some files."""
    files = [(module.name.rpartition(".")[2], module) for module in modules().values()]
    return {f"{file}: {what}" for file, module in files if file not in allowed for what in law(module)}


def crowded_folders() -> set[str]:
    """Return the folders with more modules than a floor has."""
    count: dict[str, int] = {}
    for module in modules().values():
        if not module.is_package:
            folder = module.name.rpartition(".")[0]
            count[folder] = count.get(folder, 0) + 1
    return {folder.rpartition(".")[2] for folder, found in count.items() if found > MOST_MODULES}


def small_modules() -> set[str]:
    """Return the modules with few lines and one importer; adapters of optional libraries have none."""
    importers: dict[str, int] = {}
    for name in modules():
        for other in imports(name):
            importers[other] = importers.get(other, 0) + 1
    return {
        name.rpartition(".")[2]
        for name, module in modules().items()
        if not module.is_package and module.lines < FEW_LINES and importers.get(name, 0) == 1
    }


LAWS: dict[str, Callable[[], set[str]]] = {
    "private names stand in one file for each library": lambda: of_modules(private_names, INTERNALS),
    "the user's process is left alone": lambda: of_modules(changes_of_the_process, {*OWN_PROCESSES, *INTERNALS}),
    "no hasattr or getattr on a protocol": lambda: of_modules(looks_for_members, set()),
    "a folder has at most 16 modules": crowded_folders,
    "a module under 40 lines has two importers": small_modules,
    "a docstring opens with its subject": lambda: of_modules(docstrings_without_a_subject, set()),
    "prose uses the field's words": lambda: of_modules(dialect, set()) | dialect_of_pages(),
    "no class name in two modules": twins,
}


@pytest.mark.parametrize("law", LAWS)
def test_what_breaks_a_law_is_known(law: str) -> None:
    assert sorted(LAWS[law]() - set(LEFT[law])) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_libraries_with_private_names_in_use_have_an_upper_bound(package: str) -> None:
    folder = PACKAGES[package]
    used = [path.stem.removesuffix("_internals") for path in folder.rglob("*_internals.py")]
    above = next(parent for parent in folder.parents if (parent / "pyproject.toml").exists())
    metadata = tomllib.loads((above / "pyproject.toml").read_text())["project"]
    given = [*metadata.get("dependencies", ()), *chain(*metadata.get("optional-dependencies", {}).values())]
    for library in set(used) - {"python"}:
        assert [one for one in given if re.match(rf"{library}\b[^,]*,<", one)], (
            f"{library} of {above.relative_to(ROOT)}"
        )


if __name__ == "__main__":
    for law, found in ((law, LAWS[law]()) for law in LAWS):
        print(f"{law}: {len(found)}")
        for one in sorted(found):
            print(f"    {one}" + ("" if one in LEFT[law] else "   NEW"))
        for one in sorted(set(LEFT[law]) - found):
            print(f"    {one}   NO LONGER: take it out of LEFT")
