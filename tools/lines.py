"""Writes the counts of lines in README.md and the tree in HOUSE.md; run `python tools/lines.py`."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
README, HOUSE = ROOT / "README.md", ROOT / "HOUSE.md"
SOURCES = {
    "twinkle-mesh": ROOT / "packages/twinkle-mesh/src/twinkle_mesh",
    "twinkle-remote": ROOT / "packages/twinkle-remote/src/twinkle_remote",
    "twinkle-data": ROOT / "packages/twinkle-data/src/twinkle_data",
    "twinkle-ray": ROOT / "packages/twinkle-ray/src/twinkle_ray",
    "twinkle-http": ROOT / "packages/twinkle-http/src/twinkle_http",
    "twinkle-engines": ROOT / "packages/twinkle-engines/src/twinkle_engines",
    "twinkle-all": ROOT / "src/twinkle",
}
_ROW = re.compile(r"^(\| \[?(twinkle-\w+)\b[^|]*\|) ([\d,]+) ", re.MULTILINE)
_OURS = re.compile(r"^(\| Twinkle \|.*\|) ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", re.MULTILINE)
_TREE = re.compile(r"(?<=^```text\n).*?(?=^```$)", re.MULTILINE | re.DOTALL)


def lines(folder: Path) -> int:
    """The lines of the modules below a folder, with docstrings and blanks."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in folder.rglob("*.py"))


def hundreds(number: int) -> str:
    """A number of lines, up to the next hundred."""
    return f"{-(-number // 100) * 100:,}"


def ours() -> tuple[int, int, int]:
    """The lines of all packages, of these those of calls, and of weights."""
    remote, ray = SOURCES["twinkle-remote"], SOURCES["twinkle-ray"]
    weights = lines(ray / "weights")
    calls = lines(remote) - lines(remote / "streams") + lines(ray) - weights - lines(ray / "collective")
    return sum(map(lines, SOURCES.values())), calls, weights


def tree() -> str:
    """Each folder of the packages with its modules."""
    shown: list[str] = []
    for source in SOURCES.values():
        for folder in sorted({path.parent for path in source.rglob("*.py")}):
            names = sorted(path.stem for path in folder.glob("*.py") if path.stem[:2] != "__")
            below = len(folder.relative_to(source).parts)
            first = f"{'    ' * below + folder.name + '/':28}"
            shown += textwrap.wrap(first + " · ".join(names), 118, subsequent_indent=" " * 28) or [first]
    return "".join(f"{line.rstrip()}\n" for line in shown)


def counted(readme: str) -> dict[str, int]:
    """The lines that the README names, by package, and "all", "calls" and "weights"."""
    found = {name: number for _, name, number in _ROW.findall(readme)}
    for _, *numbers in _OURS.findall(readme):
        found.update(zip(("all", "calls", "weights"), numbers, strict=True))
    return {name: int(number.replace(",", "")) for name, number in found.items()}


def main() -> None:
    """Write both pages."""
    text = README.read_text(encoding="utf-8")
    text = _ROW.sub(lambda row: f"{row[1]} {hundreds(lines(SOURCES[row[2]]))} ", text)
    text = _OURS.sub(lambda row: f"{row[1]} {' | '.join(map(hundreds, ours()))} |", text)
    README.write_text(text, encoding="utf-8")
    HOUSE.write_text(_TREE.sub(lambda _: tree(), HOUSE.read_text(encoding="utf-8"), count=1), encoding="utf-8")


if __name__ == "__main__":
    main()
