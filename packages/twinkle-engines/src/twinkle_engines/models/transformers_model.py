"""TransformersModel trains a Hugging Face causal language model over a mesh."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from twinkle_engines.batches.columns import KNOWN
from twinkle_engines.checkpoints.model_state import export, read_state, said_of, write_state
from twinkle_engines.models import parallel
from twinkle_engines.models.build import (
    build_model,
    check_installed,
    check_trained,
    enable_checkpointing,
    facts_of,
    named_weights,
    torch_dtype,
)
from twinkle_engines.models.gradients import Gradients, Notices, move, optimizer_of, set_mode
from twinkle_engines.models.layout import own_layout
from twinkle_engines.models.objective import Objective
from twinkle_engines.models.passes import Passes
from twinkle_remote import remote_class, remote_function

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

    from peft import PeftConfig
    from torch import Tensor
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from twinkle_engines.algorithms.correction import Correction
    from twinkle_engines.algorithms.losses import Normalization
    from twinkle_engines.batches.micro_batches import Batch
    from twinkle_engines.batches.rollouts import Rollouts
    from twinkle_engines.models.build import Source
    from twinkle_engines.models.forward import HeadKind
    from twinkle_mesh import DeviceMesh


_of_a_batch = remote_function("slice_dp", collect="first", split=("batch",), collective=True, balance=True)
_on_all = remote_function("all", collect="first", sync=True, collective=True)
_NOTHING = {"loss": 0.0, "tokens": 0.0}


@remote_class()
class TransformersModel:
    """A Hugging Face causal language model that is trained over the mesh that it is given.

    dp holds replicas, fsdp shards (FSDP2, together HSDP), tp divides layers by Transformers' own plan. Loss, gradients
    and steps are those of one process on the whole batch, up to rounding. A router's auxiliary loss is left out.

    Args:
        model: A folder, of which each rank reads its part; a hub's name; a config, for random weights; or a function
            that builds the model. Of these each rank builds the whole model on its CPU, then keeps its part.
        optimizer: Makes the optimizer of the parameters that are trained, such as
            `lambda parameters: torch.optim.AdamW(parameters, lr=1e-5)`; a parameter `named_parameters` is given (name,
            parameter) pairs. None: the model is not trained, as a reference.
        schedule: Makes the learning rate's schedule of the optimizer; it goes on by one at each `step`.
        max_grad_norm: Gradients are scaled down to this norm over the whole model; None does not clip.
        micro_batch_size: Sequences that each data rank computes at once; None for all of them.
        max_tokens: Tokens that each data rank computes at once, in place of sequences: these are packed one after the
            other, without padding. No sequence is longer.
        lora: Adapters to train in place of the model's own parameters. Without it, the folder of an adapter goes on
            training that one. They are not divided over tp.
        dtype: Dtype of the parameters; "bfloat16" is for those that are frozen, beside adapters or without optimizer.
        compute_dtype: Dtype of the forward and backward pass, such as "bfloat16" with float32 parameters.
        gradient_checkpointing: Compute the layers' activations anew in the backward pass, in place of keeping them.
        head: "lm": log-probabilities. "value": a number at each token, linear in the hidden state before it. "score":
            one for each sequence, at its last token. The model's own head is left out then; the new one starts at 0.
        dropout: Draw in training as the model's layers do, such as dropout; log-probabilities are computed without, so
            that a loss that compares with some sees another policy. Not with tp.
        device_mesh: The mesh, of the dims dp, fsdp and tp.
        remote_group: The group of workers that hold the model.

    Raises:
        ImportError: The libraries of the extra `hf` are missing.
        TypeError: `model` is of another type.
        ValueError: For a mesh that the model cannot be divided over, or an option out of range.
    """

    def __init__(
        self,
        model: Source,
        *,
        optimizer: Callable[[list[Any]], Optimizer] | None,
        schedule: Callable[[Optimizer], LRScheduler] | None = None,
        max_grad_norm: float | None = None,
        micro_batch_size: int | None = None,
        max_tokens: int | None = None,
        lora: PeftConfig | None = None,
        dtype: str = "float32",
        compute_dtype: str | None = None,
        gradient_checkpointing: bool = False,
        head: HeadKind = "lm",
        dropout: bool = False,
        device_mesh: DeviceMesh | None = None,
        remote_group: str | None = None,
    ) -> None:
        check_installed("TransformersModel")
        kind = torch_dtype(dtype)
        compute = None if compute_dtype is None else torch_dtype(compute_dtype)
        if micro_batch_size is not None and max_tokens is not None:
            raise ValueError("micro_batch_size counts sequences, and max_tokens tokens: give one of them")
        if any(one is not None and one <= 0 for one in (max_grad_norm, micro_batch_size, max_tokens)):
            raise ValueError("max_grad_norm, micro_batch_size and max_tokens are above 0, or None")
        self._layout = own_layout("TransformersModel")
        if dropout and self._layout.tp_size > 1:
            raise ValueError("dropout=True is not for tp, whose ranks would draw differently: use tp_size=1, with fsdp")
        self._head = head
        self._model, fill = build_model(model, kind, lora, self._layout, head)
        if optimizer is None:
            self._model.requires_grad_(False)
        else:
            compute = compute or check_trained(self._model)
        self._facts = facts_of(self._model)
        if gradient_checkpointing:
            enable_checkpointing(self._model)
        self._passes = Passes(self._model, self._layout, micro_batch_size, max_tokens, dropout, head)
        self._partial = parallel.divide(self._model, self._layout, compute, fill is None)
        if fill is not None:
            fill(self._model)
        self._trained = [one for one in self._model.parameters() if one.requires_grad]
        self._optimizer = None if optimizer is None else optimizer_of(self._model, optimizer)
        self._schedule = None if schedule is None or self._optimizer is None else schedule(self._optimizer)
        self._options = said_of(self._optimizer, self._schedule)
        self._max_grad_norm = max_grad_norm
        self._gradients = Gradients(self._trained, self._layout)
        self._compared = self._is_asleep = False
        self._notices = Notices(self._layout, self._trained if hasattr(self._model, "peft_config") else ())

    @_of_a_batch
    def forward_backward(
        self,
        batch: Batch,
        loss: str | Callable[..., Any] = "cross_entropy",
        *,
        normalize: Normalization | None = None,
        constant: float | None = None,
        correction: Correction | str | None = None,
        whiten: bool = False,
        entropy_bonus: float = 0.0,
        **options: float,
    ) -> dict[str, float]:
        """Add the gradients of a batch to those since the last step.

        Args:
            batch: Rollouts, divided so that data ranks have even tokens; or a collator's mapping of columns (rows,
                tokens), padded on either side: input_ids, attention_mask, labels (-100 at tokens that do not count) or
                a mask, temperatures. Of input_ids alone all tokens count. A mapping with position_ids in place of
                attention_mask has packs as rows. A list of such batches is divided by its members, each one a pack.
            loss: Its name, or a function of log-probabilities (sequences, tokens), at the batch's temperatures and 0
                where a token does not count, and of the padded batch. It returns one value for each token, sequence or
                pair, or these and a mapping of measures, and is called once for a micro-batch. A parameter `entropies`
                is given those of the tokens. With another `head` it is given values, or scores.
            normalize: "token": the mean over all tokens that count since the last step. "sequence": that of sequences'
                means. "constant": the sum over `constant` times the sequences. None: the loss's own (`LOSSES`).
            constant: Tokens by which "constant" divides.
            correction: "truncate", "mask" or a `Correction`, where another policy has sampled.
            whiten: Take the mean off the advantages, and divide by their spread, over all counted tokens.
            entropy_bonus: This much of each token's entropy is taken off its loss.
            options: Passed on to the loss.

        Returns:
            "loss", this batch's mean; "tokens", which count in it; "entropy" and "zero_advantages" (a share) of a
            policy loss; and what the loss measured, each a mean over the whole batch.

        Raises:
            Exception: What the loss raises. No rank keeps a part of the gradients then: all since the last step are
                forgotten. A batch that cannot be read leaves them as they are.
            ValueError: The batch has ids that the model does not know, or does not say which tokens count; the model
                has no optimizer; or gradients since the last step are means over something else.
        """
        given: Any = {"normalize": normalize, "constant": constant, "correction": correction, "whiten": whiten}
        return self._add(Objective.of(loss, self._head, **{**given, "entropy_bonus": entropy_bonus, **options}), batch)

    def _add(self, aim: Objective, batch: Batch) -> dict[str, float]:
        set_mode(self._check_has_optimizer(), "train")
        self._gradients.check_unit("" if aim.is_own else aim.unit, aim.name)
        parts = self._passes.prepare(batch, aim)
        if parts is None:
            return dict(_NOTHING)
        try:
            found = self._passes.means(parts, aim, batch, self._notices)
            if found is not None:
                self._gradients.check_unit(found.unit, aim.name)
        except BaseException:
            self._gradients.forget()
            raise
        if found is None:  # another data rank has failed, whose error the caller gets
            self._gradients.forget()
            return dict(_NOTHING)
        self._gradients.note(found)
        return found.means()

    @_of_a_batch
    def evaluate_loss(
        self,
        batch: Batch,
        loss: str | Callable[..., Any] = "cross_entropy",
        **options: Any,
    ) -> dict[str, float]:
        """The figures of `forward_backward`, with its options, without gradients; nothing counts for a step."""
        self._check_awake()
        aim = Objective.of(loss, self._head, **options)
        with torch.no_grad():
            parts = self._passes.prepare(batch, aim)
            found = None if parts is None else self._passes.means(parts, aim, batch, self._notices)
        parallel.reshard(self._model)
        return dict(_NOTHING) if found is None else found.means()

    @_on_all
    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of all parameters, from the next step on.

        Raises:
            ValueError: The model has a schedule, which sets it, or no optimizer; or the rate is below 0.
        """
        optimizer = self._check_has_optimizer()
        if self._schedule is not None:
            raise ValueError("this model has a schedule, which sets the learning rate: leave schedule= out")
        if not 0 <= rate < math.inf:
            raise ValueError(f"a learning rate is at or above 0, got {rate}")
        for group in optimizer.param_groups:
            group["lr"] = rate

    @_on_all
    def step(self) -> dict[str, float]:
        """Let the optimizer make a step with the gradients since the last one, and forget them.

        Returns:
            "grad_norm", the norm of the whole model's gradient before clipping, and "lr", that of this step. Where the
            gradient or a loss is not finite no rank makes a step, the schedule stays, and there is "skipped", 1.0.

        Raises:
            FloatingPointError: The tenth gradient in a row is not finite.
            ValueError: If no token has counted since the last step, or, at the first step over tp, a parameter that
                each rank holds whole has parts of its gradient.
        """
        optimizer = self._check_has_optimizer()
        if not self._gradients.counted:
            raise ValueError("step() has no gradient: no token has counted in forward_backward() since the last step")
        parallel.sum_partial(self._partial, self._layout.mesh.get_group("tp"))
        if self._layout.tp_size > 1 and not self._compared:
            parallel.check_replicas(self._model, self._layout)
            self._compared = True
        norm = self._gradients.clipped_norm(self._max_grad_norm)
        rate = float(optimizer.param_groups[0].get("lr", 0.0))
        if not self._gradients.are_finite(norm):
            return {"grad_norm": math.nan, "lr": rate, "skipped": 1.0}
        self._notices.step(norm)
        optimizer.step()
        set_mode(optimizer, "eval")  # what is moved, saved and read between steps is the weights to evaluate
        if self._schedule is not None:
            self._schedule.step()
        self._gradients.forget()
        return {"grad_norm": norm, "lr": rate}

    @remote_function("slice_dp", split=("rollouts",), collect="flatten", collective=True, balance=True)
    def annotate(self, rollouts: Rollouts, column: str, *, adapters: bool = True, top_k: int | None = None) -> Rollouts:
        """The rollouts with the log-probability of each token as a column, at the temperature of its sequence.

        Another head writes values, or the score of each sequence at its last token and 0 before that. A stage of a
        stream is `partial(model.annotate, column="ref_logprobs")`.

        Args:
            rollouts: Divided so that data ranks have even tokens.
            column: Its name, such as "ref_logprobs", "values", "rewards" or one of your own; a first token has 0.
            adapters: Whether the model's adapters take part; False is the model that they were put into.
            top_k: Add the likeliest tokens and their log-probabilities too, "teacher_ids" and "teacher_top".

        Raises:
            ValueError: The rollouts have ids that the model does not know; a number is not finite; the column is one by
                sequence or row; or adapters=False of a model without adapters.
        """
        self._check_awake()
        if not adapters and not hasattr(self._model, "peft_config"):
            raise ValueError("adapters=False is for a model with adapters, and this one has none: leave it out")
        if column == "ids" or KNOWN.get(column, "token") != "token":
            raise ValueError(
                f"{column!r} has no number at each token: use 'ref_logprobs', 'values' or a name of your own"
            )
        with nullcontext() if adapters else self._model.disable_adapter():
            found = self._passes.all_values(rollouts, top_k)
        for name, values in found.items():
            rollouts = rollouts.with_column(column if name == "values" else name, values)
        return rollouts

    @_on_all
    def sleep(self) -> None:
        """Move parameters, gradients and the optimizer's state to the host's memory; `wake` brings them back."""
        move(self._model, self._optimizer, "cpu")
        self._is_asleep = True

    @_on_all
    def wake(self) -> None:
        """Bring back what `sleep` has moved."""
        move(self._model, self._optimizer, self._layout.device)
        self._is_asleep = False

    def weights(self) -> Mapping[str, Tensor]:
        """This rank's part of the weights by Transformers' names; of adapters, the adapters' alone, by peft's names."""
        self._check_awake()
        return named_weights(self._model)

    def weight_metadata(self) -> Mapping[str, str]:
        """Metadata of the weights, which a sync compares with the other side's."""
        return self._facts

    def on_weights(self, version: int) -> None:
        """Have packs checked again before the next one: with other weights a sequence may see another."""
        self._passes.look_again()

    @_on_all
    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write the model as safetensors that `from_pretrained` loads; adapters alone, by peft's file names.

        The first rank holds the whole model in the host's memory meanwhile.

        Raises:
            OSError: The first rank cannot write.
            ValueError: The folder has weights already, which a loader might read in place of these.
        """
        export(self._model, folder)

    @_on_all
    def save_state(self, folder: str) -> None:
        """Write weights, optimizer, schedule and generators, each rank its part; `twinkle.engines.save` calls it.

        Raises:
            ValueError: If gradients wait for a step.
        """
        if self._gradients.counted:
            raise ValueError("a checkpoint holds no gradients: save after step(), before the next forward_backward()")
        write_state(folder, self._model, self._optimizer, self._schedule, self._layout, self._facts, self._options)

    @_on_all
    def load_state(self, folder: str) -> None:
        """Read what `save_state` wrote, on this mesh or another; gradients are forgotten.

        What the program says of the optimizer and the schedule holds, and what differs is said.

        Raises:
            ValueError: The checkpoint is of another model or optimizer.
        """
        self._gradients.forget()
        self._passes.look_again()
        parts: Any = (self._model, self._optimizer, self._schedule, self._layout, self._facts, self._options)
        for told in read_state(folder, *parts):
            self._notices.say(f"since the checkpoint {told}, which holds now")

    def _check_has_optimizer(self) -> Optimizer:
        self._check_awake()
        if self._optimizer is None:
            raise ValueError("this model has optimizer=None, so it is not trained: give it one")
        return self._optimizer

    def _check_awake(self) -> None:
        if self._is_asleep:
            raise RuntimeError("this model sleeps: call wake() first")
