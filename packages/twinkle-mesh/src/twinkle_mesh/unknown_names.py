"""Advice for unknown argument names, by the names that other libraries use for the same thing."""

from __future__ import annotations

from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")

_SAME_THING = {
    "ranks": "num_gpus n_gpus gpus num_workers num_devices world_size n_gpus_per_node",
    "device_type": "device accelerator",
    "visible_devices": "cuda_visible_devices gpu_ids device_ids",
    "gpus_per_worker": "num_gpus_per_worker tensor_parallel_size",
    "nodes": "num_nodes nnodes",
    "model": "model_name model_path model_id model_name_or_path pretrained_model_name_or_path base_model",
    "tokenizer": "processing_class",
    "optimizer": "learning_rate lr optim optimizers weight_decay",
    "schedule": "scheduler lr_scheduler lr_scheduler_type warmup_steps warmup_ratio",
    "max_grad_norm": "grad_clip gradient_clip clip_grad gradient_clipping gradient_clip_val max_norm clip_grad_norm",
    "micro_batch_size": "per_device_train_batch_size train_micro_batch_size_per_gpu ppo_micro_batch_size_per_gpu "
    "micro_batch_size_per_gpu micro_train_batch_size batch_size mini_batch_size",
    "max_tokens": "ppo_max_token_len_per_gpu max_token_len_per_gpu max_tokens_per_gpu",
    "lora": "peft_config lora_config",
    "dtype": "torch_dtype model_dtype",
    "compute_dtype": "bf16 fp16 mixed_precision precision autocast_dtype",
    "gradient_checkpointing": "use_gradient_checkpointing enable_gradient_checkpointing activation_checkpointing",
    "device_mesh": "mesh",
    "remote_group": "group device_group worker_group resource_pool",
    "params": "sampling_params generation_config generation_kwargs",
    "chat_template_kwargs": "template_kwargs enable_thinking",
    "max_new_tokens": "max_tokens max_length max_completion_length response_length max_completion_tokens",
    "n": "num_return_sequences num_generations group_size num_samples rollout_n",
    "stop": "stop_strings stop_sequences",
    "temperature": "do_sample",
    "ids": "input_ids token_ids sequences",
    "mask": "loss_mask response_mask completion_mask action_mask assistant_masks",
    "logprobs": "old_logprobs old_log_probs old_per_token_logps log_probs logps behavior_logprobs rollout_log_probs",
    "ref_logprobs": "ref_log_prob ref_log_probs ref_per_token_logps reference_logprobs",
    "rewards": "reward scores token_level_rewards",
    "completions": "responses answers",
    "low": "epsilon epsilon_low clip_ratio clip_ratio_low cliprange clip_range eps_clip eps_clip_low",
    "high": "epsilon_high clip_ratio_high eps_clip_high",
    "beta": "kl_coef kl_loss_coef kl_beta init_kl_coef",
    "loss": "loss_type loss_fn policy_loss",
    "normalize": "loss_agg_mode loss_reduction reduction",
    "scale": "scale_rewards norm_adv_by_std_in_grpo normalize_advantages",
    "how": "adv_estimator advantage_estimator estimator",
    "functions": "reward_funcs reward_functions",
    "weights": "reward_weights",
    "source": "src trainer",
    "target": "dst sampler",
    "transport": "backend communicator",
    "bucket_bytes": "bucket_size update_weights_bucket_megabytes",
    "dataset": "train_dataset data",
    "collate_fn": "data_collator collator collate_function",
    "folder": "output_dir checkpoint_dir save_dir path directory",
    "keep": "save_total_limit max_to_keep",
}
"""For each of our names, the names in TRL, verl, vLLM, OpenAI, Transformers and torch for the same thing."""

_TAKES_ANY = 8
"""The flag of code that takes keywords of any name."""

_OURS: dict[str, list[str]] = {}
for _own, _theirs in _SAME_THING.items():
    for _other in _theirs.split():
        _OURS.setdefault(_other, []).append(_own)


def instead_of(name: str, known: Collection[str]) -> str:
    """Return advice for an unknown name, such as "use max_new_tokens=".

    Args:
        name: The name that was given.
        known: The names that there are.
    """
    from difflib import get_close_matches

    near = [one for one in _OURS.get(name, ()) if one in known] or get_close_matches(name, known, 1)
    return f"use {near[0]}=" if near else f"use {', '.join(known)}"


def check_known_names(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise for an unknown name.

    Args:
        owner: What is called, for the error.
        given: The names that were given.
        known: The names that there are.

    Raises:
        TypeError: There is one.
    """
    for name in given:
        if name not in known:
            raise TypeError(f"{owner} has no {name}: {instead_of(name, known)}")


def with_known_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function or a constructor: the error of an unknown keyword says which one to use."""
    code: Any = getattr(function, "__code__")  # noqa: B009  a function's, in place of inspect, which is slow to load
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & _TAKES_ANY:
        return function
    known = dict.fromkeys(name for name in names if name != "self")
    owner = function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        if not named.keys() <= known.keys():
            check_known_names(owner, named, known)
        return function(*args, **named)

    return checked
