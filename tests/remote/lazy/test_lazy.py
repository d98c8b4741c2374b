"""Errors that methods raise, and results that are done."""

from __future__ import annotations

import pytest

from twinkle_mesh import DeviceGroup
from twinkle_remote import RemoteCallError, get, on, remote_class, remote_function, session, submit


@remote_class()
class Deep:
    @remote_function(dispatch="all", collect="first")
    def falls(self) -> None:
        self.falls()

    @remote_function(dispatch="all", collect="first")
    async def holds(self) -> int:
        return 1


def test_a_recursion_error_of_a_method_is_its_own() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        deep = on("one").create(Deep)
        for value in (submit(deep.falls), [submit(deep.falls)]):
            with pytest.raises(RecursionError) as caught:
                get(value)
            assert isinstance(caught.value, RemoteCallError)


def test_what_is_done_stays_as_it_is() -> None:
    with session("threads", groups=[DeviceGroup("one", 1, "CPU")]):
        done = submit(on("one").create(Deep).holds)
        assert get(done) == 1
        done.cancel()
        assert get(done) == 1
