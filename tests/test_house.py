"""The laws of the house, read off the source of all packages; `python -m tests.test_house` prints what is left of each.

A law about sizes is a ratchet, in `COUNTS`: today's number, which may only fall, until the goal is reached. What breaks
another law today stands in `LEFT`, by the name of its file, with the reason: a list that may only shrink.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import io
import random
import re
import tokenize
import tomllib
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from tests.test_imports import PACKAGES, ROOT, modules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.test_imports import Module

LIBRARIES = ("accelerate", "datasets", "numpy", "peft", "ray", "torch", "transformers", "uvicorn", "vllm")
FEW_LINES = 60
"""A module with fewer has the reason in its docstring, after "Short:"."""
FEW_MODULES = 3
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
_OLD_WORDS = re.compile(
    r"(?:^|_)(?:adjoin\w*|hand_over\w*|handed\w*|heat|left_out\w*|neighbours?|overtaken|patience|pump|quarantine\w*|rereading"
    r"|rooms?|setbacks?|splitters?|unseen\w*|withdrawn?|written_again)(?:_|$)"
)
"""Words of the first edition's dialect that are no plain English names of something else."""
_STATE = {"os.environ", "os.environb", "sys.executable", "sys.stderr", "sys.stdout"}
OWN_PROCESSES = {
    "rank_actor": "a worker, at its start",
}
"""Files whose code runs in processes of ours: what these set, no program of a user sees."""
INTERNALS = {"ray_internals", "torch_internals"}
"""Files that may use private names of a library, with the reason of each."""
LEFT: dict[str, dict[str, str]] = {
    "private names stand in one file for each library": {
        "replay: sys.modules": "a program's definitions are read into `__main__`, and it is put back after that",
    },
    "the user's process is left alone": {
        "serve: signal.signal": "`twinkle serve` is a program of its own",
        "serve: os.environ.pop": "a secret that no child may inherit, as the page on security says",
    },
    "no hasattr or getattr on a protocol": {
        "state: getattr weights": "a user's component, which may have the method",
        "source: getattr info": "a user's source, which may have it",
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
    "a keyword of a public function is given in a test": {
        "serve: insecure": "the command is tested with it",
    },
}
"""What breaks a law today, by law, and why it does."""
_LEFT_OUT = re.compile(
    r"#\s*(?:noqa|type: ignore|pragma|pyright: ignore)(?::\s*[A-Z]+\d+(?:, [A-Z]+\d+)*|\[[\w, -]+\])?"
)
_MARKED = re.compile(r"#\s*(?:noqa|type: ignore|pragma|pyright: ignore)|\b(?:skip|skipif|xfail|importorskip)\(")
_REASON = re.compile(r"[\s:#-]*\w+[\s\S]*\w\b.*")


@cache
def nodes(name: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a module's tree."""
    return tuple(ast.walk(modules()[name].tree))


def alias_names(module: Module) -> dict[str, str]:
    """Return what the names of a module that it has imported stand for."""
    found: dict[str, str] = {}
    for node in nodes(module.name):
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
    for node in nodes(module.name):
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
    for node in nodes(module.name):
        if isinstance(node, ast.Assign | ast.Delete):
            for target in node.targets:
                yield from target.elts if isinstance(target, ast.Tuple) else (target,)
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            yield node.target


def changes_of_the_process(module: Module) -> Iterator[str]:
    """Yield what a module changes for its whole process."""
    aliases = alias_names(module)
    for node in nodes(module.name):
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
        for node in nodes(module.name):
            if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
                found.update(
                    each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                )
    return frozenset(name for name in found if not name.startswith("__"))


def looks_for_members(module: Module) -> Iterator[str]:
    """Yield `hasattr` and `getattr` of a protocol's members."""
    for node in nodes(module.name):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("hasattr", "getattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant) and name.value in members_of_protocols():
                yield f"{node.func.id} {name.value}"


def docstrings_without_a_subject(module: Module) -> Iterator[str]:
    """Yield what has a docstring that opens with a question word, in place of what it is or does."""
    for node in nodes(module.name):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            if _NO_SUBJECT.match(text):
                yield getattr(node, "name", "the module")


def dialect(module: Module) -> Iterator[str]:
    """Yield words of the dialect in the docstrings and texts of a module; "what would do" is one: errors say "use"."""
    for node in nodes(module.name):
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
    """Return the names of classes that stand in two modules."""
    found: dict[str, set[str]] = {}
    for module in modules().values():
        for node in nodes(module.name):
            if isinstance(node, ast.ClassDef):
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
    for node in nodes(module.name):
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


def keywords_without_a_test() -> set[str]:
    """Return `function: keyword` of each keyword of a public function, or public class, that no test gives."""
    given: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.keyword) and node.arg is not None:
                given.add(node.arg)
            elif isinstance(node, ast.Dict):  # options that a test gives as **{...}
                given.update(key.value for key in node.keys if isinstance(key, ast.Constant) and type(key.value) is str)
    found: set[str] = set()
    for package in ("twinkle", "twinkle.engines"):
        faces = importlib.import_module(package)
        for name in faces.__all__:
            public = getattr(faces, name)
            raised = isinstance(public, type) and issubclass(public, BaseException)
            if callable(public) and not raised:
                keywords = inspect.signature(public).parameters.values()
                found.update(f"{name}: {one.name}" for one in keywords if one.kind is one.KEYWORD_ONLY)
    return {one for one in found if one.rpartition(" ")[2] not in given}


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


def lines(folder: str) -> int:
    """Return the lines of the modules below a folder, with docstrings and blanks."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in (ROOT / folder).rglob("*.py"))


def short_modules(package: str) -> int:
    """Return how many modules have few lines and no reason for it in their docstring."""
    return sum(
        module.lines < FEW_LINES and not module.is_package and "Short:" not in (ast.get_docstring(module.tree) or "")
        for module in modules().values()
        if module.package == package
    )


def small_folders() -> int:
    """Return how many folders have fewer than three modules beside their `__init__`."""
    count: dict[str, int] = {}
    for module in modules().values():
        folder = module.name if module.is_package else module.name.rpartition(".")[0]
        count[folder] = count.get(folder, 0) + (not module.is_package)
    return sum(found < FEW_MODULES for found in count.values())


def classes() -> list[ast.ClassDef]:
    """Return all classes of these packages."""
    return [node for module in modules().values() for node in nodes(module.name) if isinstance(node, ast.ClassDef)]


def members(node: ast.ClassDef) -> set[str]:
    """Return the names that the body of a class defines."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    found |= {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return {name for name in found if name != "__init__"}


def lonely_protocols() -> int:
    """Return how many protocols and abstract classes have fewer than two classes with all their members."""
    abstract = {"ABC", "Protocol"}
    all_classes = classes()
    own = [node for node in all_classes if {ast.unparse(base).partition("[")[0] for base in node.bases} & abstract]
    others = [(node, members(node)) for node in all_classes if node not in own]
    return sum(
        sum(
            members(node) <= found or node.name in {ast.unparse(base).partition("[")[0] for base in other.bases}
            for other, found in others
        )
        < 2
        for node in own
    )


def identifiers_of_the_dialect() -> int:
    """Return how many names of modules, classes, functions and parameters have a word of the private dialect."""
    count = 0
    for module in modules().values():
        count += bool(_OLD_WORDS.search(module.name.rpartition(".")[2]))
        for node in nodes(module.name):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                count += bool(_OLD_WORDS.search(_snake(node.name)))
            elif isinstance(node, ast.arg):
                count += bool(_OLD_WORDS.search(node.arg))
    return count


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def public_names(package: str) -> int:
    """Return how many public names a package has."""
    return len(importlib.import_module(package).__all__)


SHORT_MODULES = {
    "twinkle_mesh": 0,
    "twinkle_remote": 0,
    "twinkle_data": 1,
    "twinkle_ray": 4,
    "twinkle_http": 0,
    "twinkle_engines": 0,
    "twinkle": 5,
}
COUNTS: dict[str, tuple[Callable[[], int], int, int]] = {
    "lines of twinkle-mesh": (lambda: lines("packages/twinkle-mesh/src"), 1_300, 1_300),
    "lines of twinkle-remote": (lambda: lines("packages/twinkle-remote/src"), 12_976, 12_000),
    "lines of twinkle-data": (lambda: lines("packages/twinkle-data/src"), 2_198, 2_200),
    "lines of twinkle-ray": (lambda: lines("packages/twinkle-ray/src"), 8_085, 8_200),
    "lines of twinkle-http": (lambda: lines("packages/twinkle-http/src"), 3_121, 2_900),
    "lines of twinkle-engines": (lambda: lines("packages/twinkle-engines/src"), 7_999, 8_000),
    "lines of twinkle-all": (lambda: lines("src"), 665, 700),
    "lines of tests": (lambda: lines("tests"), 35_531, 36_000),
    "folders with fewer than three modules": (small_folders, 3, 0),
    "protocols without two implementations": (lonely_protocols, 3, 0),
    "names with a word of the private dialect": (identifiers_of_the_dialect, 14, 0),
    "public names of twinkle": (lambda: public_names("twinkle"), 50, 50),
    "public names of twinkle.engines": (lambda: public_names("twinkle.engines"), 29, 45),
    **{
        f"modules of {package} under 60 lines": (partial(short_modules, package), count, 0)
        for package, count in SHORT_MODULES.items()
    },
}
"""What is counted, today's number, and the goal."""
LAWS: dict[str, Callable[[], set[str]]] = {
    "private names stand in one file for each library": lambda: of_modules(private_names, INTERNALS),
    "the user's process is left alone": lambda: of_modules(changes_of_the_process, {*OWN_PROCESSES, *INTERNALS}),
    "no hasattr or getattr on a protocol": lambda: of_modules(looks_for_members, set()),
    "a docstring opens with its subject": lambda: of_modules(docstrings_without_a_subject, set()),
    "prose uses the field's words": lambda: of_modules(dialect, set()) | dialect_of_pages(),
    "no class name in two modules": twins,
    "what a checker or a test leaves out has its reason on the line": without_reason,
    "what is suppressed has its reason next to it": lambda: of_modules(unexplained_suppressions, set()),
    "a test asserts an error's type and a few words": sentences_in_tests,
    "the folders of tests mirror those of the packages": folders_without_a_room,
    "a keyword of a public function is given in a test": keywords_without_a_test,
}


@cache
def breaks(law: str) -> set[str]:
    """Return what breaks a law, by the name of its file."""
    return LAWS[law]()


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_only_falls(name: str) -> None:
    count, most, goal = COUNTS[name]
    assert count() <= max(most, goal), f"{name}: {count()}, at most {most} (goal {goal})"


@pytest.mark.parametrize("law", LAWS)
def test_what_breaks_a_law_is_known(law: str) -> None:
    assert sorted(breaks(law) - LEFT[law].keys()) == []


@pytest.mark.parametrize("law", LAWS)
def test_what_breaks_no_law_any_more_is_not_listed(law: str) -> None:
    assert sorted(LEFT[law].keys() - breaks(law)) == []


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
    for name, (count, most, goal) in COUNTS.items():
        print(f"{name}: {count()} (at most {most}, goal {goal})")
    for law, found in ((law, LAWS[law]()) for law in LAWS):
        print(f"{law}: {len(found)}")
        for one in sorted(found):
            print(f"    {one}: {LEFT[law].get(one, 'NEW')}")
        for one in sorted(LEFT[law].keys() - found):
            print(f"    {one}   NO LONGER: take it out of LEFT")
