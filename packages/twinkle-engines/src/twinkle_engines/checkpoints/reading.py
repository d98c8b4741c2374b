"""Reading of models and adapters from files: whole, or not at all.

Transformers and peft begin anew with what the files do not have, and tell so in their logs alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection
    from os import PathLike

    import torch


def read_model(source: str | PathLike[str], dtype: torch.dtype, revision: str | None = None) -> Any:
    """The causal language model of a folder or a hub's name.

    Raises:
        OSError: It is neither a folder nor a name that a hub knows.
        ValueError: The files do not have all of its weights.
    """
    from transformers import AutoModelForCausalLM

    options = {} if revision is None else {"revision": revision}
    read: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, output_loading_info=True, **options)
    model, told = read
    if told["missing_keys"]:
        raise ValueError(
            f"{str(source)!r} has no weights for {_some(told['missing_keys'])} of {type(model).__name__}, which would "
            "be random numbers: use a folder with all weights of a causal language model, or a function that builds "
            "the model, where parts of it are to start anew"
        )
    return model


def check_adapter(adapted: Any, folder: str | PathLike[str], name: str) -> None:
    """Raise where the files of an adapter are not those of the adapter that was made of its config.

    Args:
        adapted: The model with the adapter, which gets the weights of the files.
        folder: A folder or a hub's name.
        name: The adapter's name.

    Raises:
        ValueError: The files have not all of the adapter's weights, or have others.
    """
    from peft import load_peft_weights, set_peft_model_state_dict

    told: Any = set_peft_model_state_dict(adapted, load_peft_weights(str(folder), device="cpu"), adapter_name=name)
    trained = {key for key, one in adapted.named_parameters() if one.requires_grad}
    missing = trained.intersection(told.missing_keys)
    if missing or told.unexpected_keys:
        parts = [f"no weights for {_some(missing)}, which would start anew"] if missing else []
        if told.unexpected_keys:
            parts.append(f"weights for {_some(told.unexpected_keys)}, which the base has no place for")
        raise ValueError(
            f"the adapter in {folder} has {', and '.join(parts)}: use the base and the config that it was trained with"
        )


def _some(names: Collection[str]) -> str:
    first, *others = sorted(names)
    return f"{first} and {len(others)} more" if others else first
