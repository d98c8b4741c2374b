"""What `python_internals` uses is in this Python, and does what is said of it."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from twinkle_ray import python_internals


def test_children_start_with_another_interpreter_meanwhile() -> None:
    before = sys.executable
    with python_internals.interpreter(Path("/bin/other")):
        assert sys.executable == "/bin/other"
    assert sys.executable == before


def test_variables_are_set_and_unset_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWINKLE_A", "before")
    monkeypatch.delenv("TWINKLE_B", raising=False)
    with python_internals.environment({"TWINKLE_A": None, "TWINKLE_B": "now"}):
        assert (os.environ.get("TWINKLE_A"), os.environ["TWINKLE_B"]) == (None, "now")
    assert (os.environ["TWINKLE_A"], os.environ.get("TWINKLE_B")) == ("before", None)


def test_frozen_objects_are_listed_and_stay_frozen() -> None:
    value = [object()]
    gc.freeze()
    try:
        count = gc.get_freeze_count()
        assert any(one is value for one in python_internals.collected_objects())
        assert gc.get_freeze_count() >= count
    finally:
        gc.unfreeze()


def test_a_value_is_kept_by_one_reference_more() -> None:
    value: list[object] = []
    before = sys.getrefcount(value)
    python_internals.keep_for_good(value)
    assert sys.getrefcount(value) == before + 1


@pytest.mark.skipif(sys.platform != "linux", reason="only there the C library has on_exit")
def test_the_process_ends_with_its_status_before_handlers_that_were_there() -> None:
    program = (
        "import ctypes, sys; from twinkle_ray.python_internals import skip_destructors\n"
        "late = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p)(lambda code, _: print('late', flush=True))\n"
        "ctypes.CDLL(None).on_exit(late, None); skip_destructors(); sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "")


def test_a_file_is_mapped_at_an_address_and_ends_with_what_was_there() -> None:
    fd = os.memfd_create("twinkle-test")
    os.write(fd, bytes(mmap.PAGESIZE) + b"x" * mmap.PAGESIZE)
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    python_internals.map_at(address + mmap.PAGESIZE, mmap.PAGESIZE, fd, mmap.PAGESIZE)
    memory[mmap.PAGESIZE + 1] = ord("y")
    assert memory[mmap.PAGESIZE - 1 : mmap.PAGESIZE + 3] == b"\0xyx" and memory[-1] == 0
    assert os.pread(fd, 3, mmap.PAGESIZE) == b"xxx"
    with pytest.raises(OSError, match="Bad file"):
        python_internals.map_at(address, mmap.PAGESIZE, -1, 0)
    os.close(fd)
