"""Attention of packed sequences, each by itself: a dense mask over a whole pack costs the square of its length.

Transformers takes an attention and its masks by name. The masks of this one keep where each sequence begins and what
its tokens see. Passes without packs go on to Transformers' own, "sdpa".
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

_NAME = "twinkle_sequences"
_OWN = "sdpa"
_ALIKE, _FEW = 0.75, 16
"""The share of the longest sequence of a group, and the number of tokens less, that its others have at least."""


class _Group(NamedTuple):
    """Sequences of about one length, which are attended to at once, padded behind their last tokens.

    Attributes:
        rows: How many they are.
        width: Tokens of the longest.
        seen: What each token sees (rows, 1, width, width).
        causal: Whether that is all up to it.
    """

    rows: int
    width: int
    seen: Tensor
    causal: bool


class _Parts(NamedTuple):
    """The sequences of a pack.

    Attributes:
        groups: In which they are computed.
        order: The token of the pack at each place of all groups, one group after the other; None where it is that one.
        back: The place of each token of the pack.
    """

    groups: list[_Group]
    order: Tensor | None
    back: Tensor | None


class _Carrier(torch.Tensor):
    """A mask that nothing calculates with: a layer that chooses tokens by its mask would choose among all of them."""

    parts: _Parts

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("__get__", "__set__", "dim", "size", "is_floating_point", "__hash__"):
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]  # torch's
        raise ValueError("the model calculates with its mask, so its packs are computed by its own attention")


def can_attend_by_sequence(model: Any, device: torch.device) -> bool:
    """Whether a model's attention is one that may be replaced by that of each sequence: Transformers' "sdpa", on a CPU.

    On GPUs a pack is one call of a kernel, which many small ones would not be faster than.
    """
    own = plain_model(model)
    # no public way says which attention a model has; Transformers' own pages read this name
    return device.type == "cpu" and getattr(own.config, "_attn_implementation", None) == _OWN


@contextmanager
def attention_by_sequence(model: Any, on: bool) -> Iterator[None]:
    """Passes, forward and backward, in which packed sequences are attended to one by one; without `on` the model's own.

    Args:
        model: One that `can_attend_by_sequence`.
        on: Whether to.
    """
    if not on:
        yield
        return
    _register()
    own = plain_model(model)
    own.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        own.set_attn_implementation(_OWN)


def _register() -> None:
    """Give Transformers the attention and its masks by name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if _NAME not in AttentionInterface():
        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, _mask)


def _mask(
    batch_size: int, q_length: int, kv_length: int, *, mask_function: Callable[..., Tensor], **options: Any
) -> Tensor | None:
    """The mask of a pass: of one row without padding by sequence, else Transformers' own."""
    from transformers.masking_utils import sdpa_mask

    apart = batch_size == 1 and q_length == kv_length > 1 and options.get("attention_mask") is None
    if not apart or options.get("q_offset") or options.get("kv_offset") or options.get("use_vmap"):
        return sdpa_mask(batch_size, q_length, kv_length, mask_function=mask_function, **options)
    device = options.get("device", "cpu")
    places, first = torch.arange(q_length, device=device), torch.zeros((), dtype=torch.long, device=device)

    def seen(tokens: Tensor, others: Tensor) -> Tensor:
        return mask_function(first, first, tokens, others).expand((tokens + others).shape)

    begins = [0, *((~seen(places[1:], places[:-1])).nonzero()[:, 0] + 1).tolist(), q_length]
    parts = _grouped(begins, seen, device)
    # What a layer gets is a tensor of the mask's shape without memory of its own; what it reads are the parts.
    carrier = torch.zeros(1, 1, 1, 1, device=device).expand(1, 1, q_length, kv_length).as_subclass(_Carrier)
    carrier.parts = parts
    return carrier


def _grouped(begins: Sequence[int], seen: Callable[[Tensor, Tensor], Tensor], device: torch.device | str) -> _Parts:
    """The sequences that begin at some places, the last of which is the end, in groups of about one length."""
    lengths = torch.tensor(begins[1:]) - torch.tensor(begins[:-1])
    starts = torch.tensor(begins[:-1])
    groups, orders, back = [], [], torch.zeros(begins[-1], dtype=torch.int64)
    before = 0
    for members in _alike(lengths.tolist()):
        width, count = int(lengths[members[0]]), len(members)
        inside = torch.arange(width)
        own = inside < lengths[members, None]  # (count, width)
        tokens = starts[members, None] + torch.minimum(inside, lengths[members, None] - 1)
        # A place of padding sees what the last token sees: attention to nothing is no number.
        visible = seen(tokens[:, :, None].to(device), tokens[:, None, :].to(device)) & own[:, None].to(device)
        causal = bool((visible == torch.ones_like(visible).tril())[own].all())
        groups.append(_Group(count, width, visible[:, None], causal))
        orders.append(tokens.flatten())
        back[tokens[own]] = before + own.flatten().nonzero()[:, 0]
        before += count * width
    order = torch.cat(orders)
    if before == begins[-1] and order.equal(torch.arange(before)):
        return _Parts(groups, None, None)
    return _Parts(groups, order.to(device), back.to(device))


def _alike(lengths: Sequence[int]) -> list[list[int]]:
    """Groups of the numbers of sequences, the longest first, in each of which padding is a small part of the work."""
    found: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[found[-1][0]] if found else 0
        if not found or lengths[i] < min(_ALIKE * longest, longest - _FEW):
            found.append([])
        found[-1].append(i)
    return found


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention of a layer (1, tokens, heads, size), of queries, keys and values (1, heads, tokens, size).

    Raises:
        ValueError: The layer has a bias of positions.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward as attend

    parts = attention_mask.parts if isinstance(attention_mask, _Carrier) else None
    if parts is None:
        made: tuple[Tensor, None] = attend(module, query, key, value, attention_mask, **options)
        return made
    if options.get("position_bias") is not None:
        raise ValueError(f"{type(module).__name__} has a bias of positions: use the model's own attention")
    is_causal = options.get("is_causal")
    by_itself = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    flat = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # (tokens, heads, size)
    if parts.order is not None:
        flat = [tensor.index_select(0, parts.order) for tensor in flat]
    sizes = [group.rows * group.width for group in parts.groups]
    found = []
    for group, *given in zip(parts.groups, *(torch.split(tensor, sizes) for tensor in flat), strict=True):
        rows = [tensor.unflatten(0, (group.rows, group.width)).transpose(1, 2) for tensor in given]
        seen = None if group.causal and (by_itself or group.width == 1) else group.seen
        found.append(attend(module, *rows, seen, **options)[0].flatten(0, 1))
    whole = torch.cat(found) if len(found) > 1 else found[0]
    return (whole if parts.back is None else whole.index_select(0, parts.back))[None], None
