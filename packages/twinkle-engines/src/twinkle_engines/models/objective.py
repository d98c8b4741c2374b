"""Objectives: a loss with its options, called for each micro-batch, and the sums that its means are made of."""

from __future__ import annotations

import inspect
import math
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from twinkle_engines.algorithms.correction import Correction
from twinkle_engines.algorithms.losses import LOSSES, NamedLoss, needed, total_and_count

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from twinkle_engines.algorithms.losses import Normalization
    from twinkle_engines.batches.micro_batches import MicroBatch
    from twinkle_engines.models.forward import Entropy, HeadKind, TokenValues
    from twinkle_engines.models.layout import ModelLayout


_GIVEN = frozenset({"entropies", "top_logprobs"})
"""Parameters of a loss that it is given beside the batch."""
_OUTPUTS = {"lm": "log-probabilities", "value": "values", "score": "scores"}


class Objective(NamedTuple):
    """A loss with its options.

    Attributes:
        name: Its name, for errors.
        function: From what the model gives and the batch to its values, and what it measured.
        unit: What its mean counts, as in `normalize=`: "token", "sequence", "constant" or "pair".
        is_sampled: Whether it is an expectation over what was sampled.
        is_own: Whether it is a function of the user's.
        entropy: Whether entropies of the tokens are computed: measured of policy losses, given where it asks for them.
        asks: Parameters of the function that it is given: "entropies", "top_logprobs".
        constant: Tokens of a sequence by which "constant" divides.
        correction: As of `forward_backward`, and so the rest.
    """

    name: str
    function: Callable[..., Any]
    unit: str
    is_sampled: bool
    is_own: bool
    entropy: Entropy
    asks: frozenset[str] = frozenset()
    constant: float | None = None
    correction: Correction | None = None
    whiten: bool = False
    entropy_bonus: float = 0.0

    @classmethod
    def of(
        cls,
        loss: str | Callable[..., Any],
        head: HeadKind = "lm",
        *,
        normalize: Normalization | None = None,
        constant: float | None = None,
        correction: Correction | str | None = None,
        whiten: bool = False,
        entropy_bonus: float = 0.0,
        **options: Any,
    ) -> Objective:
        """The loss of a name, or a function, with its options; a function that has a name is the loss of that name.

        Raises:
            ValueError: For an unknown name or mean, another mean than one of pairs for a loss of pairs, a loss that the
                model's head gives nothing for, or an option that the loss has no use for.
        """
        if normalize not in (None, "token", "sequence", "constant"):
            raise ValueError(f"normalize={normalize!r:.60} is none of 'token', 'sequence', 'constant'; use one")
        if (normalize == "constant") != (constant is not None) or not (constant is None or constant > 0):
            raise ValueError(f"normalize='constant' goes with constant= above 0, got {normalize!r} with {constant}")
        if isinstance(loss, partial) and not loss.args:
            options = {**loss.keywords, **options}
            loss = loss.func
        name = next((name for name, one in LOSSES.items() if loss == name or loss is one.function), None)
        if name is None and isinstance(loss, str):
            raise ValueError(f"loss={loss!r} is none of {', '.join(map(repr, LOSSES))}, nor a function; use one")
        own: Any = LOSSES[name].function if name is not None else loss
        asks = _GIVEN & inspect.signature(own).parameters.keys() if callable(own) else frozenset()
        called = str(name or getattr(own, "__name__", type(own).__name__))
        named = NamedLoss(own, "token", (), "lm" if asks else head) if name is None else LOSSES[name]
        if head != named.head or (entropy_bonus and head != "lm"):
            raise ValueError(
                f"the loss {called} reads {_OUTPUTS['lm' if entropy_bonus else named.head]}, which a model with "
                f"head={head!r} has not: give it a function of its {head}s"
            )
        if named.normalize == "pair" and (normalize is not None or entropy_bonus):
            raise ValueError(f"loss={name!r} is a mean over pairs: leave out normalize= and entropy_bonus=")
        if (whiten or correction is not None) and name is not None and not named.is_sampled:
            raise ValueError(f"loss={name!r} reads no advantages, so whiten= and correction= have no meaning")
        trained = "entropies" in asks or bool(entropy_bonus)
        entropy: Entropy = "trained" if trained else "measured" if named.is_sampled else "none"
        chosen = Correction(correction) if isinstance(correction, str) else correction  # type: ignore[arg-type]  # any text
        more = (asks, constant, chosen, whiten, entropy_bonus)
        unit = normalize or named.normalize
        return cls(called, partial(own, **options), unit, named.is_sampled, name is None, entropy, *more)

    def whitened(self, parts: Sequence[MicroBatch], layout: ModelLayout) -> Sequence[MicroBatch]:
        """The parts with advantages whitened over all counted tokens of all data ranks, which all call this."""
        if not self.whiten:
            return parts
        own = [part.columns for part in parts if part.sequences and "advantages" in part.columns]
        found = [columns["advantages"][columns["mask"]].double() for columns in own]
        every = torch.cat([*found, torch.empty(0, dtype=torch.float64)])
        total, count = layout.sum_over_data([float(every.sum()), float(len(every))])
        mean = total / max(count, 1.0)
        (spread,) = layout.sum_over_data([float(((every - mean) ** 2).sum())])
        scale = 1 / (math.sqrt(spread / max(count, 1.0)) + 1e-8)
        for columns in own:
            given = columns["advantages"]
            columns["advantages"] = ((given.double() - mean) * scale).to(given.dtype)
        return parts

    def share(self, given: TokenValues, part: MicroBatch) -> tuple[Tensor, float, str, dict[str, Tensor]]:
        """A part's share of the mean: a sum of losses, what divides the sum of all parts, its unit, what was measured.

        Raises:
            KeyError: It reads a column that is not there.
            ValueError: It returns another shape, or values without a gradient.
        """
        logprobs, count = given.logprobs.clone(), len(part.sequences)  # a loss may write on them
        more = {name: one for name, one in given._asdict().items() if name in self.asks}
        batch: Mapping[str, Tensor] = _Columns(part.columns)
        measured: dict[str, Tensor] = {}
        if self.correction is not None:
            by_itself = self.name in ("importance_sampling", "reinforce")
            proximal = logprobs if by_itself else needed(batch, "proximal", f"{self.name} with a correction")
            batch, measured = self.correction.applied(batch, proximal)
        made: Any = self.function(logprobs, batch, **more)
        values, measures = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        self._check_shapes(values, measures, tuple(logprobs.shape), count)
        if logprobs.requires_grad and not values.requires_grad:
            raise ValueError(
                f"the loss {self.name} returned values without a gradient: compute them from its first argument, "
                "without detach() or no_grad()"
            )
        if self.is_own and logprobs.requires_grad and not bool(values.any()):
            slopes: Any = torch.autograd.grad(values.sum(), [logprobs], retain_graph=True, allow_unused=True)
            if slopes[0] is None or not bool(slopes[0].any()):
                warnings.warn(f"the gradient of {self.name} is 0, its tokens count: use evaluate_loss()", stacklevel=2)
        measures = {**measures, **measured}
        if self.is_sampled or self.entropy_bonus:
            measures["entropy"] = given.entropies
        if self.is_sampled and "advantages" in part.columns:
            measures["zero_advantages"] = (part.columns["advantages"] == 0).float()
        if values.dim() == 1:
            if self.entropy_bonus or self.constant:
                raise ValueError(f"the loss {self.name} has no value for each token: leave out entropy_bonus, constant")
            return values.sum(), float(len(values)), "sequence" if len(values) == count else "pair", measures
        if self.entropy_bonus and given.entropies is not None:
            values = values - self.entropy_bonus * given.entropies
        unit: Any = self.unit
        total, counted = total_and_count(values, part.columns, unit, self.constant)
        return total, float(counted), unit, measures

    def _check_shapes(self, values: Any, measures: Mapping[str, Any], own: tuple[int, ...], count: int) -> None:
        for name, one in ((self.name, values), *measures.items()):
            shape = tuple(getattr(one, "shape", ()))
            if shape not in (own, (count,), (count // 2,)):
                raise ValueError(
                    f"the loss {self.name} returned the shape {shape} {'' if name == self.name else f'as {name} '}for "
                    f"log-probabilities of the shape {own}: one value for each token, of the same shape, or for each "
                    f"sequence or pair, ({count},) or ({count // 2},)"
                )


class _Columns(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        raise KeyError(f"a loss reads the column {name!r}, and the batch has {', '.join(sorted(self))}")


class Found(NamedTuple):
    """Means of a batch, of all ranks.

    Attributes:
        loss: The mean of the loss; 0 where nothing counts.
        counted: What divided its sum.
        tokens: Tokens that count.
        unit: What was counted: "token", "sequence" or "pair"; empty where nothing was.
        measures: The mean of what was measured.
    """

    loss: float
    counted: float
    tokens: float
    unit: str
    measures: dict[str, float]

    def means(self) -> dict[str, float]:
        """The figures that `forward_backward` returns."""
        return {"loss": self.loss, "tokens": self.tokens, **self.measures}


class Totals:
    """The sums of some micro-batches.

    Attributes:
        loss: The sum of losses.
        counted: What divides it.
        tokens: Tokens that count.
        units: What was counted.
        measures: The sum of what was measured, and what divides it, by name.
    """

    def __init__(self) -> None:
        self.loss = self.counted = self.tokens = 0.0
        self.units: set[str] = set()
        self.measures: dict[str, tuple[float, float]] = {}

    def add(self, aim: Objective, given: TokenValues, part: MicroBatch) -> Tensor:
        """Add a micro-batch; returns its sum of losses, for the backward pass."""
        total, counted, unit, measures = aim.share(given, part)
        self.loss += total.item()
        self.counted += counted
        self.tokens += float(part.columns["mask"].sum())
        self.units.add(unit)
        for name, values in measures.items():
            kept = values.detach()
            pair = (kept.sum(), len(kept)) if kept.dim() == 1 else total_and_count(kept, part.columns, "token")
            before = self.measures.get(name, (0.0, 0.0))
            self.measures[name] = before[0] + float(pair[0]), before[1] + float(pair[1])
        return total

    def of_all(self, aim: Objective, layout: ModelLayout, failed: bool) -> tuple[Found, bool]:
        """The means of all ranks, and whether one has failed; all ranks call this."""
        loss, counted, tokens, fails = layout.sum_over_data([self.loss, self.counted, self.tokens, float(failed)])
        every = layout.gather(self) if aim.is_own or aim.is_sampled else [self]
        names = dict.fromkeys(name for one in every for name in one.measures)
        pairs = {name: [one.measures[name] for one in every if name in one.measures] for name in names}
        means = {name: sum(a for a, _ in found) / max(sum(b for _, b in found), 1e-30) for name, found in pairs.items()}
        units = sorted({unit for one in every for unit in one.units})
        unit = (units or [""])[0] if aim.is_own else aim.unit
        return Found(loss / counted if counted else 0.0, counted, tokens, unit, means), fails > 0
