"""Check the programs of this folder with mypy --strict and pyright, against the packages of any Python environment.

The backend of the docs and the README's example, with a right and a wrong call, are checked with them. Run as
`python run.py [python]`: the checkers are this interpreter's, the packages those of the given one, or this one's. Ends
with 1 when it refuses a right line, or accepts a wrong one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "mypy-typing"
CONFIG = HERE / "mypy.ini"
MARK = "# refused"
ROOT = HERE.parents[1]
BACKEND = ROOT / "docs" / "howto" / "extending.md"


def run_mypy(python: str, folder: Path) -> dict[str, dict[int, str]]:
    """What mypy --strict refuses in the programs of a folder, by file name and line."""
    # Two runs at once share no cache: make test checks wheels beside the sources.
    cache = CACHE if python == sys.executable else CACHE.with_name("mypy-wheels")
    command = [sys.executable, "-m", "mypy", "--strict", f"--config-file={CONFIG}", "--no-error-summary"]
    where = [f"--cache-dir={cache}", "--python-executable", python, "--no-pretty", "--show-absolute-path"]
    done = subprocess.run(
        [*command, *where, *map(str, sorted(folder.glob("*.py")))],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mypy ended with {done.returncode}: {done.stdout}{done.stderr}")
    found: dict[str, dict[int, str]] = {path.name: {} for path in folder.glob("*.py")}
    for name, line, text in re.findall(r"^(.+?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(Path(name).name, {})[int(line)] = text
    return found


def run_pyright(python: str, folder: Path) -> dict[str, dict[int, str]]:
    """What pyright refuses, in its standard mode."""
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "include": ["."]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [
        str(Path(sys.executable).with_name("basedpyright")),
        "--outputjson",
        "--pythonpath",
        python,
        "-p",
        str(folder),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pyright ended with {done.returncode}: {done.stdout}{done.stderr}")
    found: dict[str, dict[int, str]] = {path.name: {} for path in folder.glob("*.py")}
    for report in json.loads(done.stdout)["generalDiagnostics"]:
        if report["severity"] == "error":
            found[Path(report["file"]).name][report["range"]["start"]["line"] + 1] = report["message"]
    return found


CHECKERS = {"mypy": run_mypy, "pyright": run_pyright}


def first_program(page: Path, name: str = "") -> str:
    """The first block of Python of a page, or that of a name."""
    return page.read_text(encoding="utf-8").partition(f"```python{name}\n")[2].partition("```")[0]


def complaints(python: str = sys.executable) -> list[str]:
    """Right lines that a checker refuses, and wrong ones that it does not; empty when all is well.

    Args:
        python: The interpreter in whose environment the packages are installed.
    """
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        marked = {}
        for path in [*sorted(HERE.glob("accepted*.py")), *sorted((HERE / "rejected").glob("*.txt"))]:
            text = path.read_text()
            (folder / f"{path.stem}.py").write_text(text)
            marked[f"{path.stem}.py"] = {i for i, line in enumerate(text.splitlines(), 1) if line.endswith(MARK)}
        (folder / "backend_of_the_docs.py").write_text(first_program(BACKEND, " backend"), encoding="utf-8")
        example = first_program(ROOT / "README.md")
        wrong = example.replace("grader.grade(sampler.sample(batch))", 'grader.grade("text")')
        (folder / "example.py").write_text(example, encoding="utf-8")
        (folder / "wrong_example.py").write_text(wrong, encoding="utf-8")
        marked |= {"backend_of_the_docs.py": set(), "example.py": set()}
        marked["wrong_example.py"] = {i for i, line in enumerate(wrong.splitlines(), 1) if 'grade("text")' in line}
        assert marked["wrong_example.py"]
        for checker, run in CHECKERS.items():
            refused = run(python, folder)
            for program, lines in marked.items():
                told = refused.pop(program, {})
                found += [f"{checker} accepts line {i} of {program}" for i in sorted(lines - told.keys())]
                found += [f"{checker} refuses line {i} of {program}: {told[i]}" for i in sorted(told.keys() - lines)]
            found += [f"{checker} refuses {name}: {told}" for name, told in refused.items() if told]
    return found


if __name__ == "__main__":
    wrong = complaints(*sys.argv[1:2])
    print("\n".join(wrong) or "all as expected")
    sys.exit(bool(wrong))
