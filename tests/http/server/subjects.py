"""A component that notes its calls; in each test's process, and in that of its server."""

from __future__ import annotations

from typing import Any

from twinkle_mesh import DeviceGroup
from twinkle_remote import remote_class, remote_function


@remote_class()
class Noted:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.noted: list[int] = []

    @remote_function(dispatch="all", collect="first")
    def note(self, number: int) -> int:
        """Note a number."""
        self.noted.append(number)
        return number

    @remote_function(dispatch="all", collect="first")
    def note_list(self, numbers: list[int]) -> int:
        """Note numbers."""
        self.noted.extend(numbers)
        return len(numbers)

    @remote_function(dispatch="all", collect="first")
    def notes(self) -> list[int]:
        """What was noted."""
        return self.noted


ONE, THREE = DeviceGroup("one", 1, "CPU"), DeviceGroup("three", 3, "CPU")


ODD = "a name\udcff"  # as Python reads file names that are no UTF-8


def oddly(count: int, index: int, args: Any, kwargs: Any, mesh: Any) -> Any:
    """A dispatch that raises."""
    raise LookupError(ODD)


@remote_class()
class Odd:
    """Raises and gives text that is no Unicode."""

    @remote_function(dispatch="all", collect="first")
    def raises(self) -> None:
        """Raise on the worker."""
        error = LookupError(ODD)
        error.file = ODD  # type: ignore[attr-defined]  # a field that no class has
        raise error

    @remote_function(dispatch=oddly, collect="first")
    def dispatched(self, number: int) -> None:
        """Raise before the call."""

    @remote_function(dispatch="all", collect="first")
    def gives(self) -> str:
        """Such a text."""
        return ODD

    @remote_function(dispatch="slice_dp", collect="flatten")
    def rows(self, rows: list[int]) -> list[int]:
        """Raise for row 2."""
        if 2 in rows:
            raise LookupError(ODD)
        return rows
