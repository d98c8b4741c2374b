"""What `stub_of` of this package is to the one that programs call."""

from __future__ import annotations

import inspect

import twinkle_http
import twinkle_remote


def test_it_takes_the_arguments_that_the_contract_names() -> None:
    mine, contract = (inspect.signature(module.stub_of) for module in (twinkle_http, twinkle_remote))
    assert mine.parameters == contract.parameters
