"""Whether vLLM turns positions by the angles that Transformers has: a trainer computes with the latter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

_BORDERS = {"longrope": "original_max_position_embeddings", "dynamic": "max_position_embeddings"}
"""By kind of rotary frequencies, the field of a config up to which Transformers leaves them as they are."""


def check_rotary(config: Any, length: int) -> None:
    """Raise where vLLM turns positions by other angles than Transformers does, which a trainer has.

    vLLM has one table for all sequences of an engine: of LongRoPE, that of the longest one that it may have; of dynamic
    NTK, one that is never scaled. Transformers chooses by the sequences of each pass.

    Args:
        config: The model's.
        length: The most tokens of a sequence in the engine.

    Raises:
        ValueError: The engine is for longer sequences than those for which both have the same.
    """
    for kind, border in _borders(config.to_dict(), {}):
        if isinstance(border, int) and length > border:
            raise ValueError(
                f"max_model_len is {length}, and above {border} this model's rotary frequencies ({kind}) depend on the "
                f"length of a sequence, but vLLM has one table for all lengths, so that no trainer agrees with its "
                f"answers: use max_model_len={border}, or TransformersSampler"
            )


def _borders(config: Any, around: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The kinds of rotary frequencies in a config, at any depth, that change with the length, and from which one."""
    if not isinstance(config, Mapping):
        return
    around = {**around, **{name: config[name] for name in _BORDERS.values() if config.get(name) is not None}}
    kind = config.get("rope_type", config.get("type"))
    if kind in _BORDERS and "alpha" not in config:
        yield kind, around.get(_BORDERS[kind])
    for value in config.values():
        yield from _borders(value, around)
