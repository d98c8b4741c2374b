"""Ragged columns as rectangles, padded or packed, and back.

A padded column has the shape [sequences, longest sequence]; a pack has the shape [1, tokens] and holds several
sequences one after the other, whose first tokens have the position 0, which is how Transformers tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from twinkle_engines.batches.columns import BY_TOKEN, is_missing, starts
from twinkle_engines.batches.given import by_name, each, whole

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Side = Literal["left", "right"]
_INPUT = {"ids": "input_ids"}
TEMPERATURES = "temperatures"
"""The temperature of its sequence at each token of a padded or packed batch; 1 at padding."""
TRUNCATED = "truncated_sampling"
"""Whether each token's sequence was drawn from a part of the vocabulary; false at padding."""
_LAYOUT = ("attention_mask", "position_ids", "sequence_ids", TEMPERATURES, TRUNCATED)


def pad_columns(
    tokens: Mapping[str, torch.Tensor], lengths: Sequence[int], side: Any, pad_id: int
) -> dict[str, torch.Tensor]:
    """Every column as a rectangle, with its attention mask and positions; see `Rollouts.pad`."""
    if not isinstance(side, str) or side not in get_args(Side):
        raise ValueError(f"sequences are padded on the side 'left' or 'right', not {side!r}")
    pad_id = whole("pad_id", pad_id)
    if not -(2**63) <= pad_id < 2**63:
        raise ValueError(f"pad_id is a token, got {pad_id}")
    width = max(lengths, default=0)
    rows = torch.repeat_interleave(torch.tensor(lengths, dtype=torch.int64))
    position = torch.arange(len(rows)) - starts(lengths)[:-1][rows]
    column = position if side == "right" else position + width - torch.tensor(lengths, dtype=torch.int64)[rows]

    def rectangle(values: torch.Tensor, filler: int = 0) -> torch.Tensor:
        if is_missing(values):
            return values
        whole = values.new_full((len(lengths), width), filler)
        return whole.index_put((rows.to(values.device), column.to(values.device)), values)

    device = tokens["ids"].device
    return {
        "input_ids": rectangle(tokens["ids"], pad_id),
        "attention_mask": rectangle(torch.ones_like(rows).to(device)),
        "position_ids": rectangle(position.to(device)),
        **{name: rectangle(values, int(name == TEMPERATURES)) for name, values in tokens.items() if name != "ids"},
    }


def spread(values: Sequence[float], lengths: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """The value of its sequence at each token."""
    return torch.repeat_interleave(torch.tensor(values, dtype=dtype), torch.tensor(lengths, dtype=torch.int64))


def unpad_columns(mapping: Mapping[str, torch.Tensor], lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """The columns of a padded mapping, without its padding; see `Rollouts.unpad`."""
    mapping = _tensors(mapping)
    if "attention_mask" not in mapping:
        raise ValueError(f"the mapping needs its attention_mask, to know where tokens are; got {_names(mapping)}")
    there = mapping["attention_mask"].bool()
    found = there.sum(1).tolist() if there.dim() == 2 else []
    if found != list(lengths):
        raise ValueError(f"the mapping holds {len(found)} sequences of {found} tokens, but these have {list(lengths)}")
    wrong = {name: tuple(mapping[key].shape) for name, key in _held(mapping) if mapping[key].shape != there.shape}
    if wrong:
        raise ValueError(f"each column has the shape of the attention_mask, {tuple(there.shape)}, but got {wrong}")
    return {name: mapping[key][there.to(mapping[key].device)] for name, key in _held(mapping)}


def pack_columns(
    tokens: Mapping[str, torch.Tensor], lengths: Sequence[int], length: int
) -> list[dict[str, torch.Tensor]]:
    """Packs of at most `length` tokens; see `Rollouts.pack`."""
    longest, length = max(lengths, default=0), whole("length", length, 0)
    if longest > length:
        raise ValueError(
            f"sequence {list(lengths).index(longest)} has {longest} tokens, but a pack has length={length}: a sequence "
            f"is never cut; use length={longest}"
        )
    first = starts(lengths).tolist()
    return [_pack(tokens, lengths, first, sequences) for sequences in fit(lengths, length)]


def fit(lengths: Sequence[int], length: int) -> list[list[int]]:
    """The sequences of each pack, by first fit decreasing (Johnson 1973): at most 11/9 of the fewest packs, and 1.

    Args:
        lengths: Tokens of each sequence; empty ones need no pack.
        length: Tokens of a pack at most, not below the longest sequence.
    """
    packs: list[list[int]] = []
    leaves = 1 << max(len(lengths) - 1, 0).bit_length()
    room = [length] * (2 * leaves)  # a tree: a node has the most room of those below, and pack k is leaf leaves + k
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if not lengths[i]:
            break
        node = 1
        while node < leaves:
            node = 2 * node + (room[2 * node] < lengths[i])
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(i)
        room[node] -= lengths[i]
        while node := node // 2:
            room[node] = max(room[2 * node], room[2 * node + 1])
    return [sorted(pack) for pack in packs]


def _pack(
    tokens: Mapping[str, torch.Tensor], lengths: Sequence[int], first: Sequence[int], sequences: Sequence[int]
) -> dict[str, torch.Tensor]:
    device = tokens["ids"].device
    position = torch.tensor([place for i in sequences for place in range(lengths[i])])
    of_token = torch.tensor([i for i in sequences for _ in range(lengths[i])])
    whole = {
        _INPUT.get(name, name): torch.cat([values[first[i] : first[i] + lengths[i]] for i in sequences])
        for name, values in tokens.items()
        if not is_missing(values)
    }
    whole |= {"position_ids": position.to(device), "sequence_ids": of_token.to(device)}
    left = {name: values for name, values in tokens.items() if is_missing(values)}
    return {**{name: values[None] for name, values in whole.items()}, **left}


def unpack_columns(mappings: Iterable[Mapping[str, torch.Tensor]], lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """The columns of all packs, in the order of the sequences; see `Rollouts.unpack`."""
    packs = [_tensors(pack) for pack in each("packs", mappings)]
    for pack in packs:
        if not {"position_ids", "sequence_ids"} <= pack.keys() or pack.keys() != packs[0].keys():
            raise ValueError(
                f"packs have position_ids and sequence_ids, and all of them the same columns; got {_names(packs[0])} "
                f"and {_names(pack)}"
            )
    if not packs:
        if sum(lengths):
            raise ValueError(f"no packs, but these sequences have {sum(lengths)} tokens")
        return {}
    place = torch.cat(
        [starts(lengths)[pack["sequence_ids"][0].cpu()] + pack["position_ids"][0].cpu() for pack in packs]
    )
    if not torch.equal(place.sort().values, torch.arange(sum(lengths))):
        raise ValueError(f"the packs hold {len(place)} tokens, and not each of the {sum(lengths)} of these once")
    order = place.argsort()
    joined = {name: torch.cat([pack[key][0] for pack in packs]) for name, key in _held(packs[0])}
    return {name: values[order.to(values.device)] for name, values in joined.items()}


def _held(mapping: Mapping[str, torch.Tensor]) -> list[tuple[str, str]]:
    """The columns by token in a mapping, as (name, key)."""
    keys = [(name, _INPUT.get(name, name)) for name in BY_TOKEN]
    return [(name, key) for name, key in keys if key in mapping]


def _tensors(mapping: Any) -> dict[str, torch.Tensor]:
    """The columns of a padded or packed mapping, of which each is known and a tensor or array.

    Raises:
        TypeError: It is no mapping, or a column is something else.
        ValueError: A column is not known.
    """
    named = by_name("a batch", mapping)
    known = [*(_INPUT.get(name, name) for name in BY_TOKEN), *_LAYOUT]
    strange = [name for name in named if name not in known]
    if strange:
        raise ValueError(f"columns by token are {', '.join(known)}; {', '.join(strange)} is none of them")
    for name, column in named.items():
        if not isinstance(column, torch.Tensor) and not hasattr(column, "__array__"):
            raise TypeError(f"the column {name} is a tensor or an array, got a {type(column).__name__}")
    return {name: torch.as_tensor(column) for name, column in named.items()}


def _names(mapping: Mapping[str, torch.Tensor]) -> str:
    return ", ".join(map(str, mapping)) or "nothing"
