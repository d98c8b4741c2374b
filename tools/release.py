"""Give all distributions one version: `python tools/release.py 0.2.0`. CONTRIBUTING.md has the steps around it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
_VERSION = re.compile(r'^((?:__)?version(?:__)? = )"[^"]+"', re.MULTILINE)
_SIBLING = re.compile(r'"(twinkle-[a-z]+(?:\[[a-z,]+\])?)[<>=][^"]*"')
_NOTHING = "- Nothing changed: the version follows that of the other packages."


def span(version: str) -> str:
    """Return the range in which packages take one another: from this version on, below the next that may break them."""
    major, minor, _ = map(int, version.split("."))
    return f">={version.removesuffix('.0')},<{f'0.{minor + 1}' if major == 0 else major + 1}"


def change_log(text: str, version: str) -> str:
    """Return a change log whose newest section is that of the version: `Unreleased`, or a new one."""
    if f"\n## {version}\n" in text:
        return text
    if "\n## Unreleased\n" in text:
        return text.replace("\n## Unreleased\n", f"\n## {version}\n", 1)
    return text.replace("\n## ", f"\n## {version}\n\n{_NOTHING}\n\n## ", 1)


def release(root: Path, version: str) -> None:
    """Write the version into all that names it: metadata, ranges between siblings, `__version__`, change logs."""
    for folder in (root, *sorted((root / "packages").iterdir())):
        metadata, log = folder / "pyproject.toml", folder / "CHANGELOG.md"
        [module] = folder.glob("src/*/__init__.py")
        text = _VERSION.sub(rf'\g<1>"{version}"', metadata.read_text(encoding="utf-8"))
        metadata.write_text(_SIBLING.sub(rf'"\g<1>{span(version)}"', text), encoding="utf-8")
        module.write_text(_VERSION.sub(rf'\g<1>"{version}"', module.read_text(encoding="utf-8")), encoding="utf-8")
        log.write_text(change_log(log.read_text(encoding="utf-8"), version), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit(f"a release has one version of three numbers, such as 0.2.0: got {sys.argv[1:]}")
    release(ROOT, sys.argv[1])
