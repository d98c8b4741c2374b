"""Neighbours: whether a sequence's numbers depend on what is computed with it, measured on the model itself.

Rows alone are compared with the same rows among others, padded and packed. What is read by mistake, padding or
another sequence of a pack, has a gradient: it is exactly 0 where nothing is read, at any size of the rest. What
changes by the length of the pass, as rotary frequencies, has other values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from twinkle_engines.models.kept_state import KeptState
from twinkle_engines.models.sequence_attention import attention_by_sequence
from twinkle_engines.models.token_limits import token_limits
from twinkle_engines.parallel.parallel import reshard
from twinkle_engines.parallel.tensor_parallel import plain_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    Agree: TypeAlias = Callable[[float], float]

FAR = {2: 0.1, 4: 1e-3, 8: 1e-3}
"""By bytes of a logit, the share of the logits' spread by which half of the tokens may differ: rounding stays below."""
_BORDERS = ("max_position", "original_max", "window", "chunk", "seq_len", "seq_length")
_SHORT, _LONG = 5, 9
_CHOOSING = "keep_window_size"
"""The config's length from which Doge attends to some of all tokens, those of others too: too many to be looked at."""


class Neighbours(NamedTuple):
    """The ways in which a model computes several sequences at once, so that each has the numbers that it has alone.

    Attributes:
        padded: With longer ones, with padding; else sequences of one length alone go together.
        border: Sequences up to this length and longer ones do not go together; None without such a border.
        beyond: Whether sequences longer than the border go together.
    """

    padded: bool = True
    border: int | None = None
    beyond: bool = True

    def group(self, length: int) -> int:
        """A number that is the same for lengths that may be computed at once.

        Raises:
            ValueError: The model computes no sequence of that length reliably.
        """
        if self.border is not None and length > self.border and not self.beyond:
            raise ValueError(
                f"a sequence has {length} tokens: beyond {self.border} tokens this model's positions depend on every "
                f"length that it has seen, so no sequence has numbers of its own; use at most {self.border} tokens"
            )
        if not self.padded:
            return length
        return int(self.border is not None and length > self.border)

    def room(self, length: int) -> int | None:
        """Tokens that a sequence may get while each has the numbers that it has in the whole; None for any.

        Over the border a token before it has other numbers than it was drawn with.

        Raises:
            ValueError: The sequence ends at the border: it has no next token.
        """
        if self.border is None or length > self.border:
            return None
        if length == self.border:
            raise ValueError(
                f"a prompt has {length} tokens, at which this model's positions change: its answer would have other "
                f"log-probabilities in training than it was drawn with; use prompts of fewer or more than {self.border}"
            )
        return self.border - length

    def groups(self, lengths: Sequence[int]) -> list[list[int]]:
        """The numbers of the sequences that may be computed at once, in order.

        Raises:
            ValueError: As for `group`.
        """
        found: dict[int, list[int]] = {}
        for i, length in enumerate(lengths):
            found.setdefault(self.group(length), []).append(i)
        return list(found.values())


def measure_rows(
    model: Any, device: torch.device, side: str, agree: Agree = float, *, cached: bool = True
) -> Neighbours:
    """Measure what padded rows do to each other; all ranks that share the model's parts call this.

    Args:
        model: The model, divided or whole.
        device: Where it is.
        side: Where the padding is: "right" as in training, "left" as in sampling.
        agree: The largest of the values of all ranks that share the model's parts.
        cached: Whether a sampler writes from what the model keeps of the tokens before.

    Raises:
        ValueError: Rows of one length already change each other, or a token's numbers come from those behind it.
    """
    with _as_before(model):
        return _rows(_Look(model, device, agree), side, cached)


def _rows(look: _Look, side: str, cached: bool) -> Neighbours:
    short, long = look.ids(_SHORT, 1), look.ids(_LONG, 2)
    look.check_causal(long)
    same = look.far([short, look.ids(_SHORT, 3)], "right")
    if same:
        raise ValueError(
            f"{look.name} computes a sequence otherwise with another one of the same length, "
            "so its numbers depend on the batch: use one row at a time (micro_batch_size=1)"
        )
    padded = not look.chooses and not look.far([short, long], side)
    if side == "left" and padded:
        padded = not look.writes_otherwise([short, long], cached)
    return Neighbours(padded, *look.border())


def measure_packs(model: Any, device: torch.device, agree: Agree = float) -> Neighbours:
    """Measure what sequences of a pack do to each other; arguments as for `measure_rows`.

    Raises:
        ValueError: A sequence sees those before it, as layers with a state do; or a token those behind it.
    """
    with _as_before(model):
        look = _Look(model, device, agree)
        look.check_causal(look.ids(_LONG, 2))
        if look.chooses:
            raise ValueError(
                f"{look.name} attends to a choice of all tokens of a pack beyond {_CHOOSING}={look.chooses} of them: "
                "give it padded batches, with micro_batch_size in place of max_tokens"
            )
        if look.packs_leak([look.ids(_SHORT, 1), look.ids(_LONG, 2), look.ids(_SHORT, 3)]):
            raise ValueError(
                f"{look.name} reads on over the border of packed sequences, as layers with a state do: give it padded "
                "batches, with micro_batch_size in place of max_tokens"
            )
        return Neighbours(True, *look.border())


def measure_attention(model: Any, device: torch.device, agree: Agree = float) -> bool:
    """Whether packs have the values of their sequences alone where each is attended to by itself.

    The values alone are those of the model's own attention. All ranks that share the model's parts call this.
    """
    with _as_before(model):
        look = _Look(model, device, agree)
        sequences = [look.ids(_SHORT, 1), look.ids(_LONG, 2), look.ids(_SHORT, 3), look.ids(1, 4)]
        alone = [look.alone(one) for one in sequences]
        try:
            with attention_by_sequence(model, True):
                return not look.packs_leak(sequences, alone)
        except ValueError:  # the model calculates with its mask
            return False


@contextmanager
def _as_before(model: Any) -> Iterator[None]:
    """Passes that leave nothing in the model, such as frequencies of the longest sequence that it has seen."""
    kept = KeptState(model)
    try:
        yield
    finally:
        kept.forget()


class _Look:
    """Passes of a model over few tokens."""

    def __init__(self, model: Any, device: torch.device, agree: Agree) -> None:
        self._model, self._device, self._agree = model, device, agree
        self._own = plain_model(model)
        self.name = type(self._own).__name__
        self.chooses: int | None = getattr(self._own.config.get_text_config(), _CHOOSING, None)
        self._table = self._own.get_input_embeddings()
        self._vocabulary = token_limits(model).vocabulary or 8
        self._takes_positions = "position_ids" in inspect.signature(self._own.forward).parameters
        model.eval()

    def ids(self, length: int, seed: int) -> list[int]:
        """Different tokens, as far as there are so many; none is the one for padding."""
        pad = getattr(self._own.config.get_text_config(), "pad_token_id", None)
        known = [i for i in range(1, min(self._vocabulary, 997)) if i != pad] or [0]
        return [known[(7 * seed + 3 * i * seed + i) % len(known)] for i in range(length)]

    def check_causal(self, row: list[int]) -> None:
        """Raise for a model that predicts a token from itself and those behind it, as BERT's do by default.

        Raises:
            ValueError: It does.
        """
        upto = len(row) // 2
        given = self._tensors(input_ids=[row], attention_mask=[[1] * len(row)])
        if self._or(self._pass(given, [(0, slice(0, upto))])[1]):
            raise ValueError(
                f"{self.name} computes a token's logits from the tokens behind it too, so it knows what it is to "
                "predict: use a causal language model; a config with is_decoder is one with is_decoder=True"
            )

    def far(self, rows: list[list[int]], side: str) -> bool:
        """Whether rows of one batch have other values than alone, or see padding or each other."""
        width = max(map(len, rows))
        pads = [width - len(row) for row in rows]
        left = [pad if side == "left" else 0 for pad in pads]
        ids = [[0] * n + row + [0] * (width - len(row) - n) for n, row in zip(left, rows, strict=True)]
        mask = [[0] * n + [1] * len(row) + [0] * (width - len(row) - n) for n, row in zip(left, rows, strict=True)]
        given = self._tensors(input_ids=ids, attention_mask=mask)
        if side == "left" and self._takes_positions:
            given["position_ids"] = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
        parts = [(i, slice(n, n + len(row))) for i, (n, row) in enumerate(zip(left, rows, strict=True))]
        together, leaks = self._pass(given, parts)
        apart = [self.alone(row) for row in rows]
        return self._or(leaks or any(map(_differ, apart, together)))

    def packs_leak(self, sequences: list[list[int]], alone: list[Tensor] | None = None) -> bool:
        """Whether sequences of a pack have other values than alone, or see each other."""
        ids = [[token for one in sequences for token in one]]
        positions = [[i for one in sequences for i in range(len(one))]]
        parts, start = [], 0
        for one in sequences:
            parts.append((0, slice(start, start + len(one))))
            start += len(one)
        together, leaks = self._pass(self._tensors(input_ids=ids, position_ids=positions), parts)
        apart = alone or [self.alone(one) for one in sequences]
        return self._or(leaks or any(map(_differ, apart, together)))

    def writes_otherwise(self, rows: list[list[int]], cached: bool) -> bool:
        """Whether generation goes on otherwise behind prompts that are padded on the left."""
        from transformers import GenerationConfig

        config = GenerationConfig(
            do_sample=False,
            min_new_tokens=3,
            max_new_tokens=3,
            pad_token_id=0,
            use_cache=cached,
            output_logits=True,
            return_dict_in_generate=True,
        )

        def written(prompts: list[list[int]]) -> Tensor:
            width = max(map(len, prompts))
            ids = [[0] * (width - len(row)) + row for row in prompts]
            mask = [[0] * (width - len(row)) + [1] * len(row) for row in prompts]
            with torch.no_grad():
                made = self._model.generate(
                    **self._tensors(input_ids=ids, attention_mask=mask), generation_config=config
                )
            return torch.stack(made.logits, dim=1).to(computed)  # generate() gives wide numbers of rounded ones

        computed = next(one.dtype for one in self._own.parameters() if one.is_floating_point())
        together = written(rows)
        for i, row in enumerate(rows):
            alone = written([row])[0]
            same = (alone.argmax(-1) == together[i].argmax(-1)).long().cumprod(0)
            upto = min(int(same.sum()) + 1, len(alone))  # behind another token all is other
            if _differ(alone[:upto], together[i, :upto]):
                return True
        return False

    def border(self) -> tuple[int | None, bool]:
        """The smallest length at which longer rows change shorter ones, and whether longer ones go together.

        Lengths are known by positions: a few tokens far behind the others are as a long sequence. Tables of positions
        are read row by row, so only rotary frequencies are looked at.
        """
        if not self._takes_positions or not any("inv_freq" in name for name, _ in self._own.named_buffers()):
            return None, True
        lengths = sorted(set(_lengths(self._own.config.get_text_config().to_dict())))
        for border in lengths:
            first = max(0, border + 1 - _SHORT)  # the last token is the first one beyond
            if self._changed_by(0, first):
                return border, not any(self._changed_by(first, 3 * length) for length in (border, lengths[-1]))
        return None, True

    def _changed_by(self, start: int, other: int) -> bool:
        """Whether tokens at positions from one on have other values next to tokens at positions from another one on.

        All passes have the same shapes, so values are the same to the last bit where nothing is read, but for kernels
        that group tokens by content, as experts': other tokens at the same positions show how far these go.
        """
        mine, beside, others = (self.ids(_SHORT, seed) for seed in (1, 2, 3))

        def values(tokens: list[int], first: int) -> Tensor:
            positions = [list(range(begin, begin + _SHORT)) for begin in (start, first)]
            mask = [[1] * _SHORT] * 2
            return self._pass(self._tensors(input_ids=[mine, tokens], attention_mask=mask, position_ids=positions))[0][
                0
            ]

        before = values(beside, start)
        noise = max(_distance(before, values(others, start)), _distance(before, values(beside, start)))
        moved = _distance(before, values(beside, other))
        return self._or(moved > 4 * noise or _distance(before, values(beside, start)) > 4 * noise)

    def alone(self, row: list[int]) -> Tensor:
        """The logits of a sequence by itself."""
        return self._pass(self._tensors(input_ids=[row], attention_mask=[[1] * len(row)]))[0][0]

    def _pass(self, given: Mapping[str, Tensor], parts: Sequence[tuple[int, slice]] = ()) -> tuple[list[Tensor], bool]:
        """The logits (tokens, vocabulary) of each part, or each row; and whether a part sees what is not its own."""
        leaks = False
        with self._named(given), self._leaf() as leaves, torch.set_grad_enabled(bool(parts)):
            logits = self._model(**given, use_cache=False).logits
            chosen = [logits[row, tokens] for row, tokens in parts] or list(logits)
            for (row, tokens), one in zip(parts if leaves else (), chosen, strict=False):
                weights = torch.linspace(0.5, 1.5, one.shape[-1], device=one.device)
                weights = weights * torch.linspace(1, 2, len(one), device=one.device)[:, None]
                total = (one.float() * weights).sum()
                (seen,) = torch.autograd.grad(total, leaves[:1], retain_graph=True, allow_unused=True)
                if seen is not None:
                    seen = seen.clone()
                    seen[row, tokens] = 0
                    leaks |= bool((seen != 0).any())
        reshard(self._model)
        return [one.detach() for one in chosen], leaks

    @contextmanager
    def _named(self, given: Mapping[str, Tensor]) -> Iterator[None]:
        """A pass whose failures name the model.

        Raises:
            ValueError: The model's own code fails, as Reformer's does outside of its training.
        """
        try:
            yield
        except (torch.OutOfMemoryError, torch.distributed.DistError, ValueError):
            raise
        except Exception as error:  # whatever a model raises
            shape = tuple(given["input_ids"].shape)
            raise ValueError(
                f"{self.name} does not compute {' and '.join(given)} of shape {shape}: {type(error).__name__}: "
                f"{error}; engines need a causal language model that does, also in evaluation: use another"
            ) from error

    @contextmanager
    def _leaf(self) -> Iterator[list[Tensor]]:
        """The embeddings of the next pass, as tensors that a gradient is taken by."""
        leaves: list[Tensor] = []

        def take(module: object, inputs: object, output: Any) -> Any:
            if not torch.is_grad_enabled() or not isinstance(output, torch.Tensor):
                return None
            leaves.append(output.detach().requires_grad_())
            return leaves[-1].clone()  # a model may write on it

        handle = self._table.register_forward_hook(take)
        try:
            yield leaves
        finally:
            handle.remove()

    def _tensors(self, **columns: list[list[int]]) -> dict[str, Tensor]:
        return {name: torch.tensor(column, device=self._device) for name, column in columns.items()}

    def _or(self, found: bool) -> bool:
        return self._agree(float(found)) > 0


def _distance(one: Tensor, other: Tensor) -> float:
    """The distance of logits (tokens, vocabulary), at half of the tokens or more."""
    apart = (one.float() - other.float()).abs().amax(-1)
    return float(apart.quantile(0.5)) if bool(apart.isfinite().all()) else math.inf


def _differ(alone: Tensor, beside: Tensor) -> bool:
    """Whether logits differ by more than rounding, where they are numbers alone."""
    wide = alone.float()
    return bool(wide.isfinite().all()) and _distance(alone, beside) > FAR[alone.itemsize] * float(wide.std())


def _lengths(config: Any, name: str = "") -> Iterator[int]:
    """The lengths that a config names, at any depth."""
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _lengths(value, str(key))
    elif isinstance(config, int) and not isinstance(config, bool) and config > 0 and any(w in name for w in _BORDERS):
        yield config
