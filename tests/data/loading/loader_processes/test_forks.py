"""A fork has no threads of the libraries that its program used: the loader says so before it waits."""

import io
import os
import sqlite3
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from twinkle_data import DataLoader
from twinkle_data.loading.loader_processes.forks import warn_of_open_files

PROGRAM = """
import sys, warnings
import polars as pl
from twinkle_data import DataLoader

class Lookup:
    def __init__(self): self.frame = pl.DataFrame({"id": [n % 100 for n in range(100_000)], "v": list(range(100_000))})
    def __len__(self): return 8
    def __getitem__(self, index):
        return self.frame.filter(pl.col("id") == index).group_by("id").agg(pl.col("v").sum())["v"][0]

def rows(dataset, **options):
    loader = DataLoader(dataset, batch_size=4, num_workers=1, restarts=0, timeout_s=2, **options)
    return [row for batch in loader for row in batch]

if __name__ == "__main__":
    warnings.simplefilter("ignore", DeprecationWarning)
    lookup, fork = Lookup(), {"multiprocessing_context": "fork"}
    expected = [lookup[index] for index in range(8)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        try:
            rows(lookup, **fork)
            print("read")
        except RuntimeError as error:
            print("fork" in str(error), "forkserver" in str(error))
    print([one.category.__name__ for one in caught if "fork" in str(one.message) and "polars" in str(one.message)])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        columns = {"v": pl.Series([1, 2, 3, 4]), "ids": pl.Series([[1], [2, 3], [], [4]])}
        print([row["ids"] for row in rows(columns, **fork)], "plain columns are read")
"""


@pytest.mark.slow
def test_polars_in_a_fork_is_told_of(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=False)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["True True", "['RuntimeWarning']"], done.stderr
    assert lines[-1] == "[[1], [2, 3], [], [4]] plain columns are read", done.stderr


def test_what_uses_no_polars_is_read_without_a_word() -> None:
    from twinkle_data.loading.loader_processes.forks import warn_of_polars

    class Plain:
        rows = (1, 2)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_polars([Plain(), os.getpid, len])
        told: list[Any] = []
        warn_of_polars(told)


class Lines:
    """Numbers in a file of nine bytes a line."""

    def __init__(self, path: Path, *, early: bool) -> None:
        self.path = path
        self.file: Any = path.open("rb") if early else None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        self.file = self.file or self.path.open("rb")
        self.file.seek(9 * index)
        return int(self.file.read(8))


def test_a_file_that_forks_would_share_is_told_of(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_text("".join(f"{number:08d}\n" for number in range(8)))
    with zipfile.ZipFile(tmp_path / "archive", "w") as archive:
        archive.writestr("a", "b")
    late = Lines(path, early=False)
    loader: DataLoader[Any] = DataLoader(late, batch_size=2, num_workers=2, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert [row for batch in loader for row in batch] == list(range(8))
        warn_of_open_files([late, io.BytesIO(b"x"), [sys.stdout], print])
    held: list[Any] = [Lines(path, early=True), late.__getitem__, {"at": zipfile.ZipFile(tmp_path / "archive")}]
    held += [path.open(), sqlite3.connect(":memory:")]
    late.file = path.open("rb")
    for one in held:
        with pytest.warns(RuntimeWarning, match=r"holds an open .* share its position"):
            warn_of_open_files([one])
    for one in (held[0].file, late.file, held[2]["at"], *held[3:]):
        one.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        warn_of_open_files(held[:4])
