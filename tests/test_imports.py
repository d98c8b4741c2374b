"""The rules of the layout, read off the source of all packages; `python tests/test_imports.py` prints its figures.

Every `import` and `from ... import` counts, at the top of a module and inside functions alike. Those under
TYPE_CHECKING count for the order of the packages, but not for circles: types are free inside a package.
`from package import name` is an import of the module `package.name` where there is one, else of the package's
`__init__`. Two things do not count: that Python runs the `__init__` of each folder on the way, and names in strings.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PACKAGES = {
    "twinkle_mesh": ROOT / "packages/twinkle-mesh/src/twinkle_mesh",
    "twinkle_remote": ROOT / "packages/twinkle-remote/src/twinkle_remote",
    "twinkle_data": ROOT / "packages/twinkle-data/src/twinkle_data",
    "twinkle_ray": ROOT / "packages/twinkle-ray/src/twinkle_ray",
    "twinkle_http": ROOT / "packages/twinkle-http/src/twinkle_http",
    "twinkle_engines": ROOT / "packages/twinkle-engines/src/twinkle_engines",
    "twinkle": ROOT / "src/twinkle",
}
BELOW = {
    "twinkle_mesh": (),
    "twinkle_remote": ("twinkle_mesh",),
    "twinkle_data": ("twinkle_mesh", "twinkle_remote"),
    "twinkle_ray": ("twinkle_mesh", "twinkle_remote"),
    "twinkle_http": ("twinkle_mesh", "twinkle_remote"),
    "twinkle_engines": ("twinkle_mesh", "twinkle_remote", "twinkle_data", "twinkle_ray", "twinkle_http"),
    "twinkle": ("twinkle_mesh", "twinkle_remote", "twinkle_data", "twinkle_ray", "twinkle_http", "twinkle_engines"),
}
FACES = {
    "twinkle_mesh": ("twinkle_mesh", "twinkle_mesh.recipes"),
    "twinkle_remote": (
        "twinkle_remote",
        "twinkle_remote.errors",
        "twinkle_remote.protocol",
        "twinkle_remote.rows",
        "twinkle_remote.backends.support",
    ),
    "twinkle_data": ("twinkle_data",),
    "twinkle_ray": ("twinkle_ray",),
    "twinkle_engines": (
        "twinkle_engines",
        "twinkle_engines.algorithms.grading",
        "twinkle_engines.algorithms.losses",
    ),
}
"""What other packages may import of a package, where that is not all."""
MOST_LINES = 400
MOST_LINES_OF_A_FUNCTION = 60


class Module(NamedTuple):
    """A module of a package, by its full name."""

    name: str
    package: str
    lines: int
    tree: ast.Module
    is_package: bool
    text: str


@cache
def modules() -> dict[str, Module]:
    found: dict[str, Module] = {}
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            parts = (package, *path.relative_to(folder).with_suffix("").parts)
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text, str(path))
            found[name] = Module(name, package, text.count("\n"), tree, parts[-1] == "__init__", text)
    return found


def nodes_at_run_time(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree that are outside of `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            continue
        yield node
        yield from nodes_at_run_time(node)


@cache
def imports(name: str, *, types: bool = True) -> frozenset[str]:
    """Return the modules of these packages that a module imports, also for types alone."""
    module = modules()[name]
    found: set[str] = set()
    for node in ast.walk(module.tree) if types else nodes_at_run_time(module.tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                above = parts[: len(parts) - node.level + module.is_package]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                found.add(inner if inner in modules() else base)
    return frozenset(found & modules().keys())


def circles(package: str) -> list[list[str]]:
    """Return the strongly connected groups of more than one module (Tarjan), each sorted."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(imports(name, types=False)):
            if modules()[other].package != package:
                continue
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in names_of(package):
        if name not in order:
            visit(name)
    return sorted(found)


def names_of(package: str) -> list[str]:
    return [name for name, module in modules().items() if module.package == package]


def crossings(package: str) -> Iterator[tuple[str, str]]:
    """Yield (module, module of another package that it imports)."""
    for name in names_of(package):
        for other in sorted(imports(name)):
            if modules()[other].package != package:
                yield name, other


def behind_faces(package: str) -> list[tuple[str, str]]:
    """Return (module, module of another package that it imports) where that one is no public face."""
    return [
        (name, other)
        for name, other in crossings(package)
        if other not in FACES.get(modules()[other].package, (other,))
    ]


def functions(package: str) -> list[tuple[int, str]]:
    """Return (lines, name) of every function."""
    return [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{name}.{node.name}")
        for name in names_of(package)
        for node in ast.walk(modules()[name].tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_modules_import_one_another_in_a_circle(package: str) -> None:
    assert circles(package) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_downward_only(package: str) -> None:
    assert [pair for pair in crossings(package) if modules()[pair[1]].package not in BELOW[package]] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_import_the_public_faces_of_others_only(package: str) -> None:
    assert behind_faces(package) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_and_functions_stay_short(package: str) -> None:
    assert [name for name in names_of(package) if modules()[name].lines > MOST_LINES] == []
    assert [function for function in functions(package) if function[0] > MOST_LINES_OF_A_FUNCTION] == []


def figures(package: str) -> tuple[str, ...]:
    """Return what the rules are about, in one row of a table."""
    lines = [(modules()[name].lines, name.removeprefix(f"{package}.")) for name in names_of(package)]
    rooms = [modules()[name].lines for name in names_of(package) if not modules()[name].is_package]
    longest, function = max(lines), max(functions(package))
    return (
        package,
        str(len(rooms)),
        f"{median(rooms):g}",
        f"{longest[0]} {longest[1]}",
        f"{function[0]} {function[1].removeprefix(f'{package}.')}",
        str(len(circles(package))),
        str(len(behind_faces(package))),
    )


if __name__ == "__main__":
    head = (
        "package",
        "modules",
        "median",
        "longest module",
        "longest function",
        "circles",
        "inner imports",
    )
    table = [head, *map(figures, PACKAGES)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
