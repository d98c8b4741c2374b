"""What a share keeps of the whole: its type, and nothing that may be untrue of some rows."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections import OrderedDict, UserDict, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from tests.remote.rows.kinds_of_rows import Ids, Marked, Pair, Prompts, Table, Units, same

from twinkle_remote import CollectError, DispatchError
from twinkle_remote.rows.concat import concat
from twinkle_remote.rows.cut import rows_of, take
from twinkle_remote.rows.records import with_parts

if TYPE_CHECKING:
    from collections.abc import Callable


class Named(Pair):
    pass


def _with(value: Any, **attributes: Any) -> Any:
    for name, own in attributes.items():
        setattr(value, name, own)
    return value


MAKERS: dict[str, Callable[..., Any]] = {
    "list": lambda: Prompts([1, 2, 3]),
    "tuple": lambda: Ids(([1, 2, 3],)),
    "named tuple": lambda: Named([1, 2, 3], 2),
    "dict": lambda: Table(x=[1, 2, 3], y=np.arange(3)),
    "user dict": lambda: UserDict(x=[1, 2, 3]),
    "array": lambda: np.arange(3).view(Units),
    "tensor": lambda: torch.arange(3).as_subclass(Marked),
}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("attribute", [{"rows": [1, 2, 3]}, {"_total": 6}, {"scale": 0.5}])
def test_attributes_of_their_own_are_refused(name: str, attribute: dict[str, Any]) -> None:
    plain = MAKERS[name]()
    first, rest = take(plain, range(1)), take(plain, range(1, 3))
    joined = concat([first, take(plain, range(1, 1)), rest])
    assert type(first) is type(rest) is type(joined) is type(plain) and rows_of(first) == 1
    value = _with(MAKERS[name](), **attribute)
    with pytest.raises(DispatchError, match=rf"{next(iter(attribute))}=.*Replicate.*register_rows"):
        take(value, range(1))
    with pytest.raises((CollectError, DispatchError), match=next(iter(attribute))):
        concat([value, _with(MAKERS[name](), **attribute)])
    assert vars(value).items() >= attribute.items()


@pytest.mark.parametrize("kind", [OrderedDict, UserDict, lambda parts: defaultdict(list, parts)])
def test_kinds_of_dict_stay_what_they_are(kind: Callable[[Any], Any]) -> None:
    value = kind({"a": [1, 2, 3], "b": ([4, 5, 6], "c")})
    parts = [take(value, range(1)), take(value, range(1, 3))]
    assert [type(part) for part in parts] == [type(value)] * 2 and parts[1] == kind({"a": [2, 3], "b": ([5, 6], "c")})
    assert concat(parts) == value and type(concat(parts)) is type(value)


@dataclasses.dataclass
class Batch:
    lengths: list[int]
    note: str = "n"

    @functools.cached_property
    def tokens(self) -> int:
        return sum(self.lengths)


@dataclasses.dataclass
class Derived:
    lengths: list[int]
    total: int = dataclasses.field(init=False)
    late: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.total = sum(self.lengths)


def test_what_is_made_of_the_fields_is_made_anew() -> None:
    value = Batch([1, 2, 3, 4])
    assert value.tokens == 10
    parts = [take(value, range(1)), take(value, range(1, 4))]
    assert [part.tokens for part in parts] == [1, 9] and concat(parts).tokens == 10 and value.tokens == 10
    derived = Derived([1, 2])
    assert derived.total == 3 and take(derived, range(1)).total == 1 and not hasattr(take(derived, range(1)), "late")


def test_what_a_dataclass_has_beside_its_fields_is_refused() -> None:
    for value in (_with(Batch([1, 2]), total=3), _with(Batch([1, 2]), _rows=[1])):
        with pytest.raises(DispatchError, match=r"Batch has .*Replicate"):
            take(value, range(1))
        assert vars(with_parts(value, [[1, 2], "n"])) == vars(value)


@pytest.mark.filterwarnings("ignore")  # torch warns that jagged tensors are new
def test_jagged_tensors_with_gaps_keep_their_components() -> None:
    dense = torch.arange(24.0).view(4, 6)
    value = torch.nested.narrow(dense, 1, torch.tensor([0, 1, 2, 0]), torch.tensor([2, 3, 1, 4]), layout=torch.jagged)
    rows = [row.tolist() for row in value.unbind()]
    for start in range(1, 4):
        parts = [take(value, range(start)), take(value, range(start, 4))]
        assert [row.tolist() for part in parts for row in part.unbind()] == rows
        assert [row.tolist() for row in concat(parts).unbind()] == rows
    other = torch.nested.nested_tensor_from_jagged(torch.zeros(3, 1), torch.tensor([0, 1]), jagged_dim=2)
    with pytest.raises(CollectError, match="ragged dims"):
        concat([take(value, range(1)).to(torch.float32), other])


class Quantity(np.ndarray[Any, Any]):
    """It carries a private attribute itself."""

    def __array_finalize__(self, other: Any) -> None:
        self._unit = getattr(other, "_unit", None)


def test_what_a_type_carries_by_itself_is_refused() -> None:
    value = np.arange(4).view(Quantity)
    value._unit = "kg"
    with pytest.raises(DispatchError, match="_unit='kg'"):
        take(value, range(1))


def test_outputs_of_models_are_their_columns() -> None:
    outputs: Any = importlib.import_module("transformers.modeling_outputs")
    value = outputs.CausalLMOutput(loss=torch.tensor(1.0), logits=torch.ones(4, 2))
    part = take(value, range(1, 4))
    assert type(part) is type(value) and part.logits.shape == part["logits"].shape == (3, 2) and part.loss == 1
    assert concat([take(value, range(1)), part]).logits.shape == (4, 2)


def test_the_encodings_of_a_fast_tokenizer_are_cut_with_their_rows() -> None:
    tokenizers: Any = importlib.import_module("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = importlib.import_module("transformers").PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="a")
    batch = fast(["a b", "b", "a a a"], padding=True, return_tensors="np")
    part = take(batch, range(1, 3))
    assert type(part) is type(batch) and part.is_fast and part.tokens(0)[0] == "b" == batch.tokens(1)[0]
    whole = concat([take(batch, range(1)), part])
    assert same(whole, batch) and [whole.tokens(i) for i in range(3)] == [batch.tokens(i) for i in range(3)]
    with pytest.raises(DispatchError, match=r"value\['input_ids'\] has 3.*encodings of the tokenizer'\] has 1"):
        rows_of(fast("a b a"))
