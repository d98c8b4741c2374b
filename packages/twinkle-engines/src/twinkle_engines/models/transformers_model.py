"""TransformersModel trains a Hugging Face causal language model over a mesh."""

from __future__ import annotations

import json
import logging
import math
import warnings
from typing import TYPE_CHECKING, Any

from twinkle_engines.batches.whole_columns import OF_THE_WHOLE
from twinkle_engines.models.read_columns import READ_BY_PASSES, read_by_training
from twinkle_mesh import with_known_names
from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike
    from pathlib import Path

    from peft import PeftConfig
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from twinkle_engines.algorithms.losses import Normalization
    from twinkle_engines.batches.sequence_values import SequenceValues
    from twinkle_engines.models.micro_batches import Batch
    from twinkle_engines.models.objective import Objective
    from twinkle_engines.models.pretrained import Source
    from twinkle_mesh import DeviceMesh
    from twinkle_ray import ReplaceableWeights


_log = logging.getLogger("twinkle.engines")
_SKIPS = 10
_FACTS = "adapters.json"
_WHOLE = tuple(f"batch.{column}" for column in OF_THE_WHOLE)
_options: Any = {"split": ("batch",), "replicate": _WHOLE, "collective": True, "balance": "balance"}
_trained = remote_function("slice_dp", collect="first", reads=read_by_training, **_options)
_computed = remote_function("slice_dp", collect="flatten", reads=lambda: READ_BY_PASSES, **_options)


@remote_class()
class TransformersModel:
    """A Hugging Face causal language model that is trained over the mesh that it is given.

    dp holds replicas, fsdp shards (FSDP2, together HSDP), tp divides layers by Transformers' own plan. Experts are
    divided as wholes, over tp, or over ep_size ranks with etp_size=1. Loss, gradients and steps are those of one
    process on the whole batch, up to rounding. A router's auxiliary loss is left out: it is no sum over tokens.

    Args:
        model: A folder or a hub's name; a config, for random weights; or a function that builds the model. Every rank
            builds the same whole model on its CPU, then keeps its part.
        optimizer: Makes the optimizer of the parameters that are trained, such as
            `lambda parameters: torch.optim.AdamW(parameters, lr=1e-5)`.
        schedule: Makes the learning rate's schedule of the optimizer; it goes on by one at each `step`.
        max_grad_norm: Gradients are scaled down to this norm over the whole model; None does not clip.
        micro_batch_size: Rows that each data rank computes at once; None for all of them.
        max_tokens: Tokens that each data rank computes at once, in place of rows: sequences are packed one after the
            other, without padding. No sequence is longer.
        lora: Adapters to train in place of the model's own parameters. Without it, the folder of an adapter goes on
            training that one.
        dtype: Dtype of the parameters and of the optimizer's state; gradients are added up in float32 or more.
            Adapters, and what is trained with them, are in float32 where it is a shorter one.
        compute_dtype: Dtype of the forward and backward pass, such as "bfloat16" with float32 parameters.
        gradient_checkpointing: Compute the layers' activations anew in the backward pass, in place of keeping them.
        balance: Divide a batch so that data ranks have even tokens; else so that they have even rows, in their order.
        device_mesh: The mesh, of the dims dp, fsdp and tp, and of ep_size.
        remote_group: The group of workers that hold the model.

    Raises:
        ImportError: The libraries of the extra `hf` are missing.
        TypeError: An argument is of another type, `optimizer` or `schedule` makes something else, or the model has no
            head over its vocabulary.
        ValueError: For a mesh that the model cannot be divided over, or an option out of range.
    """

    @with_known_names
    def __init__(
        self,
        model: Source,
        *,
        optimizer: Callable[[list[Any]], Optimizer],
        schedule: Callable[[Optimizer], LRScheduler] | None = None,
        max_grad_norm: float | None = None,
        micro_batch_size: int | None = None,
        max_tokens: int | None = None,
        lora: PeftConfig | None = None,
        dtype: str = "float32",
        compute_dtype: str | None = None,
        gradient_checkpointing: bool = False,
        balance: bool = True,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        from twinkle_engines.batches.given import flag, fraction
        from twinkle_engines.models.micro_batches import given_sizes
        from twinkle_engines.models.optimizers import check_makers, made_optimizer, made_schedule
        from twinkle_engines.models.pretrained import check_installed, torch_dtype
        from twinkle_engines.parallel.model_layout import check_precision, own_layout

        check_installed("TransformersModel")
        torch_dtype("dtype", dtype)
        compute = None if compute_dtype is None else torch_dtype("compute_dtype", compute_dtype)
        check_precision("TransformersModel", dtype=dtype, compute_dtype=compute_dtype)
        check_makers(optimizer, schedule)
        self._max_grad_norm = None if max_grad_norm is None else fraction("max_grad_norm", max_grad_norm)
        if self._max_grad_norm is not None and not self._max_grad_norm > 0:
            raise ValueError(f"max_grad_norm is above 0, or None, got {max_grad_norm}")
        sizes = given_sizes(micro_batch_size, max_tokens)
        anew, _ = flag("gradient_checkpointing", gradient_checkpointing), flag("balance", balance)
        self._layout = own_layout("TransformersModel", device_mesh)

        from twinkle_engines.models.adapters import check_adapters, facts, widen
        from twinkle_engines.models.lost_steps import LostSteps
        from twinkle_engines.models.passes import Passes
        from twinkle_engines.models.pretrained import build_model, config_facts, enable_checkpointing
        from twinkle_engines.parallel.gradients import GradientSums
        from twinkle_engines.parallel.parallel import divide

        self._model: Any = build_model(model, dtype, lora)
        check_adapters(self._model)
        compute = compute or widen(self._model)
        self._facts, self._config_facts = facts(self._model), config_facts(self._model)
        if anew:
            enable_checkpointing(self._model)
        self._passes = Passes(self._model, self._layout, *sizes)
        self._partial = divide(self._model, self._layout, compute)
        self._trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._sums = GradientSums(self._trained)
        self._lost = LostSteps(self._trained if self._layout.is_first else [])
        self._optimizer = made_optimizer(optimizer, self._trained)
        self._schedule = made_schedule(schedule, self._optimizer)
        self._counted, self._finite, self._unit, self._skipped = 0.0, True, "", 0
        self._compared = self._warned = self._unsure = False

    @_trained
    def forward_backward(
        self,
        batch: Batch,
        loss: str | Callable[..., Tensor] = "cross_entropy",
        normalize: Normalization | None = None,
        *,
        dropout: bool | None = None,
        **options: float,
    ) -> dict[str, float]:
        """Add the gradients of a batch to those since the last step.

        Args:
            batch: Rollouts, divided so that data ranks have even tokens; or a collator's mapping of columns (rows,
                tokens), padded on either side: input_ids, attention_mask, labels (-100 at tokens that do not count) or
                a mask, temperatures. Of input_ids alone all tokens count. A mapping with position_ids in place of
                attention_mask has packs as rows. A list of such batches is divided by its members, each one a pack.
            loss: Its name, or a function from log-probabilities (sequences, tokens), at the batch's temperatures and
                0 where a token does not count, and the padded batch to one value for each token. No columns are
                fetched that a loss does not read; `losses.reading` says so of a function, which else reads all.
            normalize: "token": the mean over all tokens that count since the last step. "sequence": the mean over
                sequences of each one's mean. None: the loss's own, "sequence" for grpo and gspo, pairs for dpo, else
                "token".
            dropout: Whether the model draws as in training, such as dropout. None: where the loss compares with no
                `logprobs` or `ref_logprobs`, which are computed without.
            options: Passed on to the loss.

        Returns:
            "loss", this batch's mean, and "tokens", the number of tokens that count in it.

        Raises:
            Exception: What the loss raises. No rank keeps a part of the gradients then: all since the last step are
                forgotten. A batch that cannot be read leaves them as they are.
            ValueError: The batch has ids that the model does not know, or does not say which tokens count.
        """
        from twinkle_engines.models.micro_batches import check_trainable
        from twinkle_engines.models.objective import objective
        from twinkle_engines.models.passes import dropout as dropout_in

        aim = objective(loss, normalize, options)
        self._check_unit(aim)
        parts = self._passes.prepare(batch, lambda: check_trainable(batch, aim.unit == "pair"))
        if parts is None:
            return {"loss": 0.0, "tokens": 0.0}
        has_dropout = self._passes.has_dropout(dropout, aim, parts)
        try:
            with dropout_in(self._model, has_dropout, self._layout.mesh.get_group("tp"), self._layout.device):
                totals, failure = self._passes.add_gradients(parts, aim, self._sums)
            flags = failure is not None, self._passes.is_truncated(aim, parts)
            total_loss, counted, tokens, failed, truncated = self._layout.sum_over_data([*totals, *map(float, flags)])
            if failure is not None:
                raise failure
        except BaseException:
            self._forget_gradients()
            raise
        if failed:  # on another data rank, whose error the caller gets
            self._forget_gradients()
            return {"loss": 0.0, "tokens": 0.0}
        self._note(aim, counted, math.isfinite(total_loss), truncated > 0)
        return {"loss": total_loss / counted if counted else 0.0, "tokens": tokens}

    @remote_function(dispatch="all", collect="first", collective=True)
    def step(self) -> dict[str, float]:
        """Let the optimizer make a step with the gradients since the last one, and forget them.

        Returns:
            "grad_norm", the norm of the whole model's gradient before clipping, and "lr", that of this step. Where the
            gradient or a loss is not finite no rank makes a step, the schedule stays, and there is "skipped", 1.0.

        Raises:
            FloatingPointError: The tenth gradient in a row is not finite, or the weights are not.
            ValueError: If no token has counted since the last step, the learning rate is no finite number, or, at the
                first step over tp, a parameter that each rank holds whole has parts of its gradient.
        """
        from twinkle_engines.models.optimizers import rate_of
        from twinkle_engines.parallel import gradients

        if not self._counted:
            raise ValueError("step() has no gradient: no token has counted in a forward_backward() since the last step")
        gradients.sum_partial(self._sums.of(self._partial), self._layout.mesh.get_group("tp"))
        if self._layout.tp_size > 1 and not self._compared:
            named = [(name, one) for name, one in self._model.named_parameters() if one.requires_grad]
            group = self._layout.mesh.get_group("tp")
            gradients.check_replicas(named, self._sums, group, self._layout.max_over_all)
            self._compared = True
        gradients.scale(self._sums.all(), 1 / self._counted)
        norm = gradients.clip(self._sums.all(), self._max_grad_norm)
        rate = rate_of(self._optimizer)
        if self._layout.max_over_all(float(not (self._finite and math.isfinite(norm)))):
            return self._skip(rate)
        self._skipped = 0
        looked = self._lost.before(self._sums, rate)
        self._sums.hand_over()
        self._optimizer.step()
        self._lost.after(looked, rate)
        if self._schedule is not None:
            self._schedule.step()
        self._forget_gradients()
        return {"grad_norm": norm, "lr": rate}

    @_computed
    def logprobs(self, batch: Batch) -> SequenceValues:
        """The log-probability of each token, at the temperature of its sequence (1 without the column).

        Args:
            batch: As for `forward_backward`; divided so that data ranks have even tokens.

        Returns:
            A list with a tensor for each sequence, as long as its ids, on the CPU; 0 at the first token. The sequences
            are in the order of the batch, whose rows are the list's rows in other calls.
        """
        import torch

        from twinkle_engines.batches.sequence_values import SequenceValues
        from twinkle_engines.models.micro_batches import count_sequences
        from twinkle_engines.models.read_columns import without_left_out
        from twinkle_engines.parallel.parallel import reshard

        found: dict[int, Tensor] = {}
        with torch.no_grad():
            parts = self._passes.prepare(batch)
            self._model.eval()
            for part in parts or ():
                found.update(part.rows(self._passes.logprobs(part)))
        reshard(self._model)
        counts = count_sequences(without_left_out(batch)[0])
        return SequenceValues([found.get(number, torch.zeros(0)) for number in range(sum(counts))], counts)

    def weights(self) -> ReplaceableWeights[Tensor]:
        """This rank's part of the weights by Transformers' names; of adapters, the adapters' alone, by peft's names."""
        from twinkle_engines.models.pretrained import named_weights
        from twinkle_ray import ReplaceableWeights

        return ReplaceableWeights(named_weights(self._model), {**self._facts, **self._config_facts})

    @remote_function(dispatch="all", collect="first", sync=True, collective=True)
    def save_pretrained(self, folder: str | PathLike[str], merge: bool = False) -> None:
        """Write the model as safetensors that `from_pretrained` loads; adapters alone, by peft's file names.

        No rank holds more than its part, and the first one a file of at most 2 GiB, or a tensor that is larger. Older
        weights, indexes, adapters and configs in the folder go, its other files stay, and it changes at once.

        Args:
            folder: A folder that all ranks see; made where it is missing.
            merge: Write the whole model, with its adapters added to its weights.

        Raises:
            OSError: The first rank cannot write; the folder stays as it was.
            ValueError: Adapters that are not merged, such as DoRA, or that would stand next to a whole model.
        """
        from twinkle_engines.batches.given import flag
        from twinkle_engines.checkpoints.export import export
        from twinkle_engines.checkpoints.replaced_folder import folder_path

        export(self._model, folder_path("folder", folder), flag("merge", merge))

    @remote_function(dispatch="all", collect="first", sync=True, collective=True)
    def save_state(self, folder: str) -> None:
        """Write weights, optimizer, schedule and generators, each rank its part; `twinkle.engines.save` calls it.

        Raises:
            ValueError: If gradients wait for a step.
        """
        from twinkle_engines.checkpoints.model_state import write_state
        from twinkle_engines.checkpoints.replaced_folder import folder_path

        if self._counted:
            raise ValueError("a checkpoint holds no gradients: save after step(), before the next forward_backward()")
        path = folder_path("folder", folder)
        if self._facts and self._layout.is_first:
            path.mkdir(parents=True, exist_ok=True)
            (path / _FACTS).write_text(json.dumps(self._facts), encoding="utf-8")
        write_state(path, self._model, self._optimizer, self._schedule, self._layout)

    @remote_function(dispatch="all", collect="first", sync=True, collective=True)
    def load_state(self, folder: str) -> None:
        """Read what `save_state` wrote, on this mesh or another; gradients are forgotten.

        Raises:
            ValueError: Adapters that stand on another base, or have another scaling.
        """
        from twinkle_engines.checkpoints.model_state import read_state
        from twinkle_engines.checkpoints.replaced_folder import folder_path

        self._forget_gradients()
        path = folder_path("folder", folder)
        read_state(path, self._model, self._optimizer, self._schedule, self._layout, self._check_adapters)

    def _check_adapters(self, path: Path) -> None:
        """Raise where a checkpoint's adapters stand on another base than this model's; warn where it does not say."""
        from twinkle_engines.models.adapters import check_facts

        file = path / _FACTS
        theirs = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        check_facts(self._facts, theirs, "the checkpoint")
        if self._facts and not any("base" in name for name in self._facts.keys() & theirs.keys()) and not self._unsure:
            self._unsure = True
            if self._layout.is_first:
                warnings.warn(
                    "the checkpoint does not say on which base its adapters stand, as those of older versions: their "
                    "names and shapes are compared alone, and they are right on their own base only; save() writes it",
                    stacklevel=2,
                )

    def _check_unit(self, aim: Objective) -> None:
        if self._counted and aim.unit != self._unit:
            raise ValueError(
                f"gradients since the last step() are a mean over {self._unit}s, and {aim.name} is one over "
                f"{aim.unit}s: give both the same normalize=, or make a step() between"
            )

    def _skip(self, rate: float) -> dict[str, float]:
        from twinkle_engines.parallel.gradients import local_parts

        self._forget_gradients()
        self._skipped += 1
        if self._layout.max_over_all(float(not all(bool(one.isfinite().all()) for one in local_parts(self._trained)))):
            raise FloatingPointError(
                "weights are not finite: a step of the optimizer has made them so, with a gradient that was, as Adam's "
                "does with eps=0; use another optimizer, and load() a checkpoint"
            )
        if self._skipped >= _SKIPS:
            raise FloatingPointError(
                f"the gradient was not finite in {_SKIPS} steps in a row, and the weights are those before them: look "
                "for NaN or infinity in losses, advantages and weights, or use a smaller learning rate"
            )
        _log.warning("the gradient, or a loss, is not finite: no step is made (%d in a row)", self._skipped)
        return {"grad_norm": math.nan, "lr": rate, "skipped": 1.0}

    def _note(self, aim: Objective, counted: float, is_finite: bool, is_truncated: bool) -> None:
        """Note what a batch added; warn once, on the first rank, of a loss over samples of truncated sampling."""
        self._counted += counted
        self._finite = self._finite and is_finite
        self._unit = aim.unit
        if self._warned or not is_truncated or not self._layout.is_first:
            return
        self._warned = True
        warnings.warn(
            "these rollouts were drawn from a part of the tokens (top_k, top_p or min_p): the loss takes the whole "
            "distribution for what sampled, so its gradient is not that of the expected reward; use top_k=0, top_p=1.0 "
            "and min_p=0.0 to sample for it, or rollouts.replace(truncated_sampling=None) where this is meant",
            stacklevel=2,
        )

    def _forget_gradients(self) -> None:
        self._sums.forget()
        self._counted = 0.0
        self._finite = True
