"""Writes a divided model as safetensors that `from_pretrained` loads."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from copy import copy, deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from transformers.core_model_loading import revert_weight_conversion

from twinkle_engines.batches.columns import alone
from twinkle_engines.batches.ends import ends_of
from twinkle_engines.checkpoints.merging import Merged, merged_weights, whole
from twinkle_engines.checkpoints.replaced_folder import ADAPTER, MODEL, check_adapters_folder, replaced_folder
from twinkle_engines.models.pretrained import named_weights, read_tokenizer
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

MOST_BYTES = 2 << 30
"""Size of one file of weights; the first rank holds as many bytes."""


def export(model: Any, path: Path, merge: bool = False) -> None:
    """Write a model's configuration and weights; all ranks call this, the first one writes.

    The folder holds nothing else of a model afterwards, and changes at once or not at all. The tokenizer's files with
    the model's source are copied where the folder has none.

    Args:
        model: The model; of one with adapters these alone are written, by peft's file names.
        path: Folder to write to; it is made.
        merge: Write the model with its adapters added to its weights.

    Raises:
        OSError: The first rank cannot write.
        ValueError: The adapters cannot be merged, or are to be written next to a whole model.
    """
    adapters = hasattr(model, "peft_config") and not merge
    writer = _Writer(path, ADAPTER if adapters else MODEL)
    with writer:
        if adapters:
            writer.run(lambda _: check_adapters_folder(path))
            writer.agree()
            parts = {name: whole(weight.detach()) for name, weight in named_weights(model).items()}
            writer.run(lambda fresh: _write_adapters(model, parts, fresh))
        else:
            own = plain_model(model)
            state = own.state_dict(keep_vars=True)
            merged = hasattr(model, "peft_config")
            weights = merged_weights(model) if merged else {name: Merged(weight) for name, weight in state.items()}
            ties = _ties(own, weights)
            writer.run(lambda fresh: _write_config(own, fresh, path, is_tied=ties is not None))
            _write_weights(own, {name: one for name, one in weights.items() if name not in (ties or ())}, writer)


class _Writer:
    """The first rank's writing, while all ranks take part in collectives: a failure is reported at their end.

    Args:
        folder: What is replaced.
        replaces: Patterns of what goes of it.
    """

    def __init__(self, folder: Path, replaces: tuple[str, ...]) -> None:
        self._writes = dist.get_rank() == 0
        self._place = replaced_folder(folder, replaces)
        self._fresh = Path()
        self._failure: Exception | None = None

    def __enter__(self) -> None:
        if self._writes:
            try:
                self._fresh = self._place.__enter__()
            except OSError as error:
                self._failure = error

    def run(self, function: Callable[[Path], object]) -> None:
        """Call a function of the folder to write in, on the first rank, unless something has failed before."""
        if self._writes and self._failure is None:
            try:
                function(self._fresh)
            except Exception as error:
                self._failure = error

    def agree(self) -> None:
        """Raise on all ranks where something has failed.

        Raises:
            Exception: What failed on the first rank; OSError or ValueError elsewhere.
        """
        given: list[tuple[bool, str] | None] = [None]
        if self._failure is not None:
            given = [(isinstance(self._failure, ValueError), f"the first rank: {self._failure}")]
        dist.broadcast_object_list(given, src=0)
        if self._failure is not None:
            raise self._failure
        if given[0] is not None:
            raise (ValueError if given[0][0] else OSError)(given[0][1])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is not None:
            if self._writes and self._fresh != Path():
                self._leave(error)
            return
        if self._writes and self._failure is None:
            try:
                self._place.__exit__(None, None, None)
            except OSError as failed:
                self._failure = failed
        elif self._writes and self._fresh != Path():
            self._leave(self._failure)
        self.agree()

    def _leave(self, error: BaseException | None) -> None:
        with suppress(BaseException):  # the block's own error, which is raised already
            self._place.__exit__(None if error is None else type(error), error, None)


def _write_adapters(model: Any, parts: Mapping[str, Tensor], path: Path) -> None:
    config = copy(model.peft_config["default"])
    config.inference_mode = True
    if config.task_type is None:
        kind = model_class(plain_model(model))
        config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    config.save_pretrained(path)
    _save(dict(parts), path / "adapter_model.safetensors")


def _ties(model: Any, weights: Mapping[str, Merged]) -> set[str] | None:
    """The names that a loader ties to others by the model's config; None where the weights are not tied as it says.

    A head that was trained by itself is a weight of its own next to the embeddings, whatever the config says; one that
    a function has tied is written as one.
    """
    ties = {name: first for name, first in model.all_tied_weights_keys.items() if {name, first} <= weights.keys()}
    pairs = [(weights[name], weights[first]) for name, first in ties.items()]
    return {*ties} if all(one.weight is other.weight and one.up is other.up for one, other in pairs) else None


def _write_config(model: Any, path: Path, folder: Path, is_tied: bool) -> None:
    """Write what a loader reads with the weights: configs, and the tokenizer of the model's source."""
    config = deepcopy(model.config)
    for one in () if is_tied else (config, config.get_text_config()):
        one.tie_word_embeddings = False
    config.architectures = [model_class(model).__name__]
    config.save_pretrained(path)
    source = Path(model.name_or_path or "")
    found = [file for pattern in _TOKENIZER for file in source.glob(pattern)] if source.is_dir() else []
    beside = [file for file in found if file.is_file()]
    if model.can_generate():
        settings = deepcopy(model.generation_config)
        place = folder if any(folder.glob("tokenizer*.json")) else source if beside else None
        settings.eos_token_id = _ends(place, settings.eos_token_id)
        settings.save_pretrained(path)
    if not any(one.exists() for pattern in _TOKENIZER for one in folder.glob(pattern)):
        for file in beside:
            shutil.copy2(file, path / file.name)


_TOKENIZER = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "chat_template.jinja",
    "tekken.json",
)


def _ends(folder: Path | None, given: Any) -> Any:
    """The ends of a generation config with those of the tokenizer in a folder; one end stays a number."""
    tokenizer = None
    if folder is not None:
        with suppress(OSError, ValueError):  # a folder without a tokenizer, or with one of another library
            tokenizer = read_tokenizer(folder, None)
    ends = ends_of(tokenizer, given)
    return None if not ends else ends[0] if len(ends) == 1 else ends


def model_class(model: Any) -> Any:
    """The class of a model that may be divided, as Transformers knows it."""
    kinds = type(model).__mro__
    return next(kind for kind in kinds if not kind.__module__.startswith("torch.distributed") and not is_divided(kind))


def is_divided(kind: type) -> bool:
    """Whether a class is the one that torch makes of a model that it divides."""
    return kind.__name__.startswith("FSDP")


def _as_published(model: Any) -> Any:
    """A model whose class Transformers knows the published names of; torch renames the class of one that it divides."""
    kind = model_class(model)
    if type(model) is kind or getattr(model, "_weight_conversions", None) is not None:  # those that it was read by
        return model
    with torch.device("meta"):
        return kind(deepcopy(model.config))


def _write_weights(model: Any, weights: Mapping[str, Merged], writer: _Writer) -> None:
    files = _files(weights)
    single = len(files) == 1
    places: dict[str, str] = {}
    for number, names in enumerate(files, 1):
        file = "model.safetensors" if single else f"model-{number:05d}-of-{len(files):05d}.safetensors"
        kept: dict[str, Tensor] = {}
        for name in names:
            tensor = weights[name].whole()
            if dist.get_rank() == 0:
                kept[name] = tensor
        writer.run(partial(_write_file, model, kept, file, places))
    if not single:
        index = {"metadata": {"total_size": sum(weight.nbytes for weight in weights.values())}, "weight_map": places}
        text = json.dumps(index, indent=2)
        writer.run(lambda path: (path / "model.safetensors.index.json").write_text(text, encoding="utf-8"))


def _write_file(model: Any, kept: dict[str, Tensor], file: str, places: dict[str, str], path: Path) -> None:
    # By the names of published files, in which each expert has its own; a part of a tensor gets its own memory.
    published = revert_weight_conversion(_as_published(model), kept)
    _save(_apart(published), path / file)
    places |= dict.fromkeys(published, file)


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each with memory of its own: of two that a function has tied, each is written."""
    found: dict[str, Tensor] = {}
    places: set[int] = set()
    for name, tensor in tensors.items():
        own = alone(tensor.contiguous())
        found[name] = own.clone() if own.data_ptr() in places else own
        places.add(own.data_ptr())
    return found


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    """Write a file of weights.

    Raises:
        OSError: It cannot be written, as on a full disk.
    """
    try:
        save_file(tensors, file, {"format": "pt"})
    except SafetensorError as error:
        raise OSError(f"{file.name} cannot be written: {error}") from error


def _files(weights: Mapping[str, Merged]) -> list[list[str]]:
    """Names by file, in order; a file is at most MOST_BYTES long, or holds one tensor."""
    files: list[list[str]] = [[]]
    size = 0
    for name, weight in weights.items():
        if files[-1] and size + weight.nbytes > MOST_BYTES:
            files.append([])
            size = 0
        files[-1].append(name)
        size += weight.nbytes
    return files
