"""Run the notebooks of this folder and keep what they show: python docs/notebooks/run.py [NAME ...]."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
SECONDS = 180  # for one cell; all of a notebook take less than a minute on a quiet machine


def run(path: Path, folder: Path = HERE) -> Any:
    """Run a notebook in a folder, in a kernel of its own.

    Args:
        path: The notebook; the file is not changed.
        folder: Where the kernel works.

    Returns:
        The notebook with its outputs, without times and numbers that differ from run to run.
    """
    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]  # nbformat has no types
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", record_timing=False)
    client.execute(cwd=str(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if {"text/html", "image/svg+xml", "image/png"} & set(output.get("data", ())):
                    output.data.pop("text/plain", None)  # it has the id of this run
    notebook.metadata.pop("widgets", None)
    notebook.metadata.language_info = {"name": "python"}
    return notebook


def main() -> None:
    """Run the notebooks that are named, or all, and write them."""
    for path in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or path.stem in sys.argv[1:]:
            nbformat.write(run(path), path)  # type: ignore[no-untyped-call]  # nbformat has no types


if __name__ == "__main__":
    main()
