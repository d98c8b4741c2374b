"""An unknown argument is answered by the one to use."""

from __future__ import annotations

from typing import Any

import pytest

from twinkle_mesh import DeviceGroup, check_known_names, instead_of, with_known_names
from twinkle_mesh.unknown_names import _SAME_THING


@pytest.mark.parametrize(
    ("name", "known", "use"),
    [
        ("max_tokens", ("n", "max_new_tokens"), "use max_new_tokens="),
        ("max_tokens", ("max_tokens", "lora"), "use max_tokens="),
        ("peft_config", ("lora", "dtype"), "use lora="),
        ("dtpye", ("lora", "dtype"), "use dtype="),
        ("zzz", ("lora", "dtype"), "use lora, dtype"),
    ],
)
def test_what_is_meant_is_among_the_known_names(name: str, known: tuple[str, ...], use: str) -> None:
    assert instead_of(name, known) == use


def test_a_function_answers_names_that_it_has_not() -> None:
    @with_known_names
    def grpo(low: float, *, beta: float = 0.0) -> float:
        return low + beta

    wrong: Any = {"kl_coef": 1.0}
    group: Any = DeviceGroup
    assert grpo(1.0, beta=2.0) == 3.0
    with pytest.raises(TypeError, match="has no kl_coef: use beta="):
        grpo(1.0, **wrong)
    with pytest.raises(TypeError, match="use ranks="):
        group("one", num_gpus=2)
    with pytest.raises(TypeError, match="Owner has no b"):
        check_known_names("Owner", ["a", "b"], ["a"])


def test_no_name_of_others_is_the_same_name_of_ours() -> None:
    assert not [own for own, theirs in _SAME_THING.items() if own in theirs.split()]
