"""The laws of the house, read off the source of all packages; `python -m tests.test_house` prints what is left of each.

What breaks a law today stands in `LEFT`, by the name of its file: a list that may only shrink.
"""

from __future__ import annotations

import ast
import io
import random
import re
import tokenize
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
MOST_WORDS = 9
"""Words of an error that a test may ask for: more of them are the sentence itself."""
_PRIVATE_TEXT = re.compile(rf"(?:{'|'.join(LIBRARIES)})(?:\.\w+)*\._[a-zA-Z]\w*(?:\.\w+)*")
_DRAWS = {name for name in (*dir(random.Random), "rand") if name[0] != "_"} - {"getstate", "seed", "setstate"}
_CHANGES = {
    *(f"gc.{name}" for name in ("disable", "freeze", "set_threshold", "unfreeze")),
    *(f"torch.set_{name}" for name in ("default_device", "default_dtype", "default_tensor_type", "num_threads")),
    *(f"{library}.{name}" for library in ("random", "numpy.random") for name in _DRAWS),
    *(f"os.environ.{name}" for name in ("clear", "pop", "setdefault", "update")),
    *("numpy.seterr", "numpy.set_printoptions", "os.putenv", "os.unsetenv", "signal.signal", "sys.setrecursionlimit"),
}
_NO_SUBJECT = re.compile(r"(?:What|Which|How|As|Nothing)\b")
_DIALECT = re.compile(
    r"\b(?:would do\b(?! [a-z])|as (?:it|they) lies?\b|in earnest\b|as ever\b|dear(?:er|est)\b|tells? of\b"
    r"|(?:is|are|was|were|be) told\b|mend(?:s|ed)?\b)"
)
"""Words of a dialect, where a colleague says "use", "in place", "report", "fix", "more expensive"."""
_BESIDE = re.compile(r"\b(?:beside|tells|told)\b", re.IGNORECASE)
"""More of it, on pages only."""
_CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_STATE = {"os.environ", "os.environb", "sys.executable", "sys.stderr", "sys.stdout"}
OWN_PROCESSES = {
    "rank_actor": "a worker, at its start",
    "server": "the fork server, a process of its own",
    "forked": "a process that the fork server has made",
    "whole_lines": "a worker, at its start",
}
"""Files whose code runs in processes of ours: what these set, no program of a user sees."""
INTERNALS = {"python_internals", "ray_internals", "torch_internals"}
"""Files that may use private names of a library, with the reason of each."""
LEFT: dict[str, dict[str, str]] = {
    "private names stand in one file for each library": {
        "definitions: sys.modules": "a program's definitions are read into `__main__`, and it is put back after that",
        "delivery: torch.utils.data._utils.pin_memory.pin_memory": "torch pins a tree of tensors in no public function",
        "interpreter: torch._dynamo": "a module to load ahead of forks, by its name; none of its members is used",
        "process_start: torch._C": "torch has no public way to take a process off the list of its SIGCHLD handler",
    },
    "the user's process is left alone": {
        "collector: gc.disable": "a pause for the work on a wide call, which ends with that work",
        "collector: gc.freeze": "moves new objects to the old ones, and `gc.unfreeze` follows at once",
        "collector: gc.unfreeze": "follows `gc.freeze` at once, and only where the user has frozen nothing",
        "device_probes: os.environ.setdefault": "`twinkle doctor` is a program of its own",
        "exit_status: sys.stderr": "a failure found at the end of the program sets its exit status; Python has no way",
        "exit_status: sys.stdout": "as for sys.stderr",
        "process_start: gc.disable": "a process that is forked now must not collect garbage of its parent",
        "process_start: gc.freeze": "in a loader process, at its start",
        "serve: signal.signal": "`twinkle serve` is a program of its own",
        "token_file: os.environ.pop": "a secret that no child may inherit, as the page on security says",
        "vllm_loop: os.environ.setdefault": "vLLM reads this choice from the environment alone",
    },
    "no hasattr or getattr on a protocol": {
        "adapters: getattr value": "an enum of peft's, or a text in its place",
        "dispatching: getattr name": "a pandas object of a conformance check",
        "endpoint: getattr weights": "a user's component, which may have the method",
        "fingerprint: getattr fingerprint": "a user's dataset, which may have it",
        "fingerprint_types: hasattr columns": "an object of pandas",
        "fingerprint_types: hasattr take": "an object of pandas",
        "marks: hasattr state_dict": "a user's class, which may have it",
        "objects: hasattr value": "a conformance check: a handle has no attributes of its component",
        "rows: getattr valid": "a user's list, which may have it",
        "streams: getattr load_state_dict": "a user's dataset, which may have it",
        "streams: getattr state_dict": "a user's dataset, which may have it",
    },
    "a folder has at most 16 modules": {},
    "a module under 40 lines has two importers": {
        "error_by_value": "a subclass of Ray's pickler, which is made at its import: only workers that fail need it",
        "plain_output": "an error handler of `codecs`, which the command registers before all else",
        "restarting": "the public function, loaded on first use; the backend is at its limit of lines",
    },
    "a docstring opens with its subject": {},
    "prose uses the field's words": {},
    "no class name in two modules": {},
    "what a checker or a test leaves out has its reason on the line": {},
    "what is suppressed has its reason next to it": {},
    "a test asserts an error's type and a few words": {},
    "the folders of tests mirror those of the packages": {
        "ray/hosts": "clusters of several hosts, in namespaces of the network",
        "ray/streams": "streams of twinkle-remote over workers of Ray that die",
    },
}
"""What breaks a law today, by law, and why it does."""
_LEFT_OUT = re.compile(
    r"#\s*(?:noqa|type: ignore|pragma|pyright: ignore)(?::\s*[A-Z]+\d+(?:, [A-Z]+\d+)*|\[[\w, -]+\])?"
)
_MARKED = re.compile(r"#\s*(?:noqa|type: ignore|pragma|pyright: ignore)|\b(?:skip|skipif|xfail|importorskip)\(")
_REASON = re.compile(r"[\s:#-]*\w+[\s\S]*\w\b.*")


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
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/*.md")]
    found: set[str] = set()
    for page in pages:
        prose = _CODE.sub("", page.read_text(encoding="utf-8"))
        found.update(f"{page.stem}: {word}" for word in (*_DIALECT.findall(prose), *_BESIDE.findall(prose)))
    return found


def twins() -> set[str]:
    """Return the names of classes that stand in two modules; subjects of the conformance suite are named freely."""
    found: dict[str, set[str]] = {}
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and ".conformance." not in module.name:
                found.setdefault(node.name, set()).add(module.name)
    return {name for name, places in found.items() if len(places) > 1}


def without_reason() -> set[str]:
    """Return `file: line` of each mark for a checker, and of each skipped test, without its reason on the line.

    A mark is `noqa` or `type: ignore`; what is left out is `# noqa: E731  the reason`.
    """
    found: set[str] = set()
    for folder in ("benchmarks", "docs", "examples", "packages", "src", "tests", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not _MARKED.search(text):
                continue
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                mark = _LEFT_OUT.search(token.string) if token.type == tokenize.COMMENT else None
                if mark is not None and not _REASON.fullmatch(token.string[mark.end() :]):
                    found.add(f"{path.stem}: {token.string}")
            found.update(f"{path.stem}: {one}" for one in skips_without_reason(ast.parse(text)))
    return found


def skips_without_reason(tree: ast.Module) -> Iterator[str]:
    """Yield calls that leave a test out, without a text that says why."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, words = node.func.attr, {keyword.arg for keyword in node.keywords}
            says = "reason" in words or (name == "skip" and bool(node.args))
            if name in ("skip", "skipif", "xfail", "importorskip") and not says:
                yield ast.unparse(node)


def unexplained_suppressions(module: Module) -> Iterator[str]:
    """Yield `suppress(...)` of exceptions without a comment on its line, or on the one above."""
    lines = module.text.splitlines()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.With | ast.AsyncWith):
            for call in (item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)):
                own, above = lines[call.lineno - 1], lines[call.lineno - 2].strip()
                explained = "  # " in own or above.startswith("# ")
                if ast.unparse(call.func).rpartition(".")[2] == "suppress" and not explained:
                    yield own.strip()


def sentences_in_tests() -> set[str]:
    """Return `test file: match` of each text that a test asserts of an error, where it is a sentence."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for keyword in node.keywords if isinstance(node, ast.Call) else ():
                text = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if keyword.arg == "match" and isinstance(text, str) and len(text.split()) > MOST_WORDS:
                    found.add(f"{path.stem}: {text}")
    return found


def folders_without_a_room() -> set[str]:
    """Return the folders of tests that mirror no folder of their package."""
    found: set[str] = set()
    for package, room in PACKAGES.items():
        tests = ROOT / "tests" / package.removeprefix("twinkle_")
        folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
        found.update(f"{tests.name}/{folder}" for folder in folders if not (room / folder).is_dir())
    return found


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
    "what a checker or a test leaves out has its reason on the line": without_reason,
    "what is suppressed has its reason next to it": lambda: of_modules(unexplained_suppressions, set()),
    "a test asserts an error's type and a few words": sentences_in_tests,
    "the folders of tests mirror those of the packages": folders_without_a_room,
}


@pytest.mark.parametrize("law", LAWS)
def test_what_breaks_a_law_is_known(law: str) -> None:
    assert sorted(LAWS[law]() - LEFT[law].keys()) == []


@pytest.mark.parametrize("law", LAWS)
def test_what_breaks_no_law_any_more_is_not_listed(law: str) -> None:
    assert sorted(LEFT[law].keys() - LAWS[law]()) == []


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
            print(f"    {one}: {LEFT[law].get(one, 'NEW')}")
        for one in sorted(LEFT[law].keys() - found):
            print(f"    {one}   NO LONGER: take it out of LEFT")
