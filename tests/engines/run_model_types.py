"""Whether a sampler's answers are those of each prompt alone, for every causal language model that Transformers has.

    python tests/engines/run_model_types.py [--dtype bfloat16] [TYPE ...]

Each type is built small, with random weights, in a process of its own. `TransformersSampler` answers prompts of several
lengths at once. The oracle is Transformers alone: another model with the same weights reads each whole answer in one
pass, and continues each prompt by itself. Each type ends as one of:

- exact: prompts of all lengths go together, and the answers have the oracle's log-probabilities;
- apart: prompts of one length go together, or those on one side of a border, and the answers are as above;
- refused: an error names the model and the rule;
- not built: Transformers itself does not compute the small config of this script;
- wrong: the answers have other log-probabilities, and nothing says so, or an error of others comes. The exit status is
  then 1.

In bfloat16 a model has noise of its own: Phi-3.5-MoE sends a token to other experts when its scores are rounded. So the
oracle reads each answer in float32 too, with the same rounded weights; a sampler may be three times as far off as that.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from functools import partial
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from twinkle.engines import SamplingParams, TransformersSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

DTYPES = ("float32", "bfloat16")
SECONDS = 240.0
"""The limit of one type."""
LENGTHS = (3, 11, 5, 9, 1, 20)
"""Tokens of the prompts."""
LAYERS = 4
SIZES: tuple[tuple[str, int], ...] = (
    (r"(.*_)?vocab_size(_.*)?", 64),
    (r"max_position_embeddings|n_positions|max_seq_len|max_(target|source)_positions|n_ctx|context_length", 64),
    (r"sliding_window(_size)?|attention_window_size|attention_chunk_size|(keep_)?window_size|local_attention", 6),
    (r"local_attention_window_len|mem_len|index_topk|rel_extent|floor_scale", 6),
    (
        r"hidden_size(_global)?|n_embd|d_model|dim|embed_dim|embedding_size|emb_dim|embedding_dim|attention_hidden_size",
        32,
    ),
    (
        r"lru_width|(input|output)_embedding_size|word_embed_proj_dim|(pronunciation|shape)_embed_dim|backbone_hidden_size",
        32,
    ),
    (r"hidden_size_per_layer_input|.*lora_rank|laurel_rank|adapter_rank|hc_lowrank|gated_norm_rank|d_rel", 8),
    (r"(.*_)?(intermediate_size|ffn_dim|ffn_hidden_size|d_ff|mlp_dim|feed_forward_size)(_mlp)?", 48),
    (r"dff|dim_ff|mamba_d_ssm|d_inner|prompt_mid_dim", 48),
    (r"num_hidden_layers|n_layers?|num_layers|(en|de)coder_layers|num_(en|de)coder_layers|num_blocks|depth", LAYERS),
    (r"(.*_)?num_attention_heads|n_heads?|num_heads|attention_heads|((en|de)coder_)attention_heads", 4),
    (r"num_(en|de)coder_attention_heads|num_query_groups", 4),
    (r"(.*_)?num_key_value_heads|num_kv_heads", 2),
    (r"qk_head_dim", 16),
    (r"(.*_)?head_dim|kv_channels|attention_head_size|d_kv|d_head|dim_head|qk_(nope|rope)_head_dim|rotary_dim", 8),
    (r"(.*_)?num(_local)?_experts|n_routed_experts|moe_num_experts|zero_expert_num", 4),
    (r"num_experts_per_tok(en)?|moe_topk|moe_k|n_group|topk_group|num_expert_group|shared_experts_num", 2),
    (r"mamba_d_state|state_size|ssm_state_size|time_step_rank|mamba_dt_rank", 4),
    (r"(mamba_)?chunk_size|(local|lsh)_attn_chunk_length", 8),
    (r"index_n_heads", 32),  # few heads have equal scores, of which kernels choose
    (r"query_pre_attn_scalar|dim_model_base", 8),
)
"""A field's name, and its value where the default is larger."""
_DERIVED = {"head_dim": 8, "num_key_value_heads": 4}
"""Fields that some types leave open, and cannot do without."""
_NOT_OWN = ("transformers_version", "model_type", "_name_or_path", "architectures", "dtype", "id2label", "label2id")
_WINDOWS = ["sliding_attention", "full_attention"]
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_QWEN4: dict[str, Any] = {
    "indexer_n_heads": 4,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 8,
    "indexer_compress_ratio": 2,
    "ngram_vocab_size_base": 64,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 1,
    "ple_embed_dim": 32,
    "heads_per_ngram": 2,
    "ple_layer_ids": [1],
    "eos_token_id": 0,
}
_GEMMA3N = {
    "layer_types": _WINDOWS * 2,
    "intermediate_size": [48] * 4,
    "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    "num_kv_shared_layers": 2,
}
OWN: dict[str, dict[str, Any]] = {
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "blt": {"num_hidden_layers": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "n_group": 2, "topk_group": 1, "num_experts_per_tok": 2},
    "dbrx": {"attn_config.rope_theta": 1e4, "attn_config.clip_qkv": 8.0},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_routed_experts": 4},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    "cohere_compass_text": {
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in _WINDOWS}
    },
    "gemma3n_text": _GEMMA3N,
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "qwen4_exp_text": _QWEN4,
    "qwen4_exp": {f"text_config.{name}": value for name, value in _QWEN4.items()},
}
"""Fields of single types."""


def small(kind: str) -> Any:
    """A config of few layers, of each kind that the type has, and of few numbers."""
    made = CONFIG_MAPPING[kind]
    fields = _shrunk(made().to_dict())
    for name, value in OWN.get(kind, {}).items():
        *path, last = name.split(".")
        inner = fields
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    if fields.get("is_decoder") is False:  # with the default these see what they are to predict, and are refused
        fields["is_decoder"] = True
    return made(**fields)


def _shrunk(config: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    by_index: dict[str, dict[int, Any]] = {}
    for name, value in config.items():
        size = next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), None)
        if name in _NOT_OWN:
            continue
        if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):
            by_index[name] = {int(key): one for key, one in value.items()}
        elif isinstance(value, dict):
            found[name] = _shrunk(value)
        elif size is not None and isinstance(value, int) and not isinstance(value, bool):
            found[name] = min(value, size)
        elif value is None and name in _DERIVED:
            found[name] = _DERIVED[name]
        elif name.endswith("_token_id"):
            found[name] = 1 if name == "pad_token_id" else 0 if isinstance(value, int) else value
        else:
            found[name] = value
    layers = next((config[name] for name in ("num_hidden_layers", "num_layers", "n_layer") if config.get(name)), None)
    by_layer = {name: one for name, one in config.items() if isinstance(one, list) and layers and len(one) == layers}
    if by_layer:
        kinds = list(zip(*(map(str, one) for one in by_layer.values()), strict=True))
        first = sorted({one: i for i, one in reversed(list(enumerate(kinds)))}.values())
        chosen = sorted((first + [i for i in range(len(kinds)) if i not in first])[:LAYERS])
        found |= {name: [one[i] for i in chosen] for name, one in by_layer.items()}
        for name, own in by_index.items():
            found[name] = {new: _shrunk(own[i]) for new, i in enumerate(chosen) if i in own}
    if "kv_lora_rank" in config and "num_key_value_heads" in config:
        found["num_key_value_heads"] = found["num_attention_heads"]
    return found


def build(kind: str) -> Any:
    """The model, whose weights are large enough that each token counts."""
    torch.manual_seed(5)
    model = AutoModelForCausalLM.from_config(small(kind), dtype=torch.float32).eval()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    with torch.no_grad():
        for one in model.parameters():
            if one.dim() > 1 and one.is_floating_point():
                one.normal_(0, 0.2)
            elif one.is_floating_point():
                one.add_(0.1 * torch.randn(one.shape))
        if not bool(_read(model, list(range(2, 34))).isfinite().all()):
            model.load_state_dict(before)
    return model


@torch.no_grad()
def _read(model: Any, ids: list[int]) -> torch.Tensor:
    """The logits of a sequence alone, in one pass."""
    found: torch.Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    return found


def look(kind: str, dtype: str, folder: str) -> tuple[str, str]:
    """The end of one type, and the numbers or the error.

    Args:
        kind: The type.
        dtype: Of the weights.
        folder: An empty one. Weights of a short type are read from it, as users have them.
    """
    try:
        oracle = exact = build(kind)
        source: Any = partial(build, kind)
        if dtype != "float32":
            oracle.save_pretrained(folder)
            oracle = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
            source, exact = folder, AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
            for one, rounded in zip(exact.parameters(), oracle.parameters(), strict=True):
                one.data = rounded.data.float()
        _read(oracle, [3, 5, 7])
    except Exception as error:  # whatever a model raises
        return "not built", _line(error)
    prompts = [[2 + (7 * i + 3 * j * (i + 1)) % 60 for j in range(length)] for i, length in enumerate(LENGTHS)]
    params = SamplingParams(max_new_tokens=7, seed=1)
    try:
        sampler = TransformersSampler(source, dtype=dtype)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            together = sampler.sample(prompts, params)
            apart = [sampler.sample([one], params) for one in prompts]  # by seed, the same answers
    except ValueError as error:
        return "refused", _line(error)
    except Exception as error:  # whatever a model raises
        return "wrong", _line(error)
    noise: list[torch.Tensor] = []
    gaps: list[torch.Tensor] = []
    alone: list[torch.Tensor] = []
    spread: list[torch.Tensor] = []
    for i, prompt in enumerate(prompts):
        for made, found in ((together[i], gaps), (apart[i], alone)):
            ids = made.ids[0]
            logits = _read(oracle, ids.tolist())[:-1]
            both = logits, _read(exact, ids.tolist())[:-1]
            read, unrounded = (one.log_softmax(-1).gather(1, ids[1:, None])[:, 0] for one in both)
            assert made.logprobs is not None
            found.append((made.logprobs[0][1:] - read)[len(prompt) - 1 :].abs().median())
            noise.append((read - unrounded)[len(prompt) - 1 :].abs().median())
            spread.append(logits.std())
    worst, own, rounding, wide = (float(torch.stack(one).max()) for one in (gaps, alone, noise, spread))
    limit = max({"float32": 1e-4, "bfloat16": 0.03}[dtype] * wide, 3 * rounding)
    same = sum(together.ids[i].tolist() == one.ids[0].tolist() for i, one in enumerate(apart))
    numbers = f"{worst:.2g} together, {own:.2g} alone, {rounding:.2g} by rounding, of {wide:.2g}"
    numbers += f"; {same} of {len(prompts)} answers alike"
    ended = [str(one.message)[:60] for one in said if "answers ended" in str(one.message)]
    if max(worst, own) > limit or (dtype == "float32" and same < len(prompts)):
        return "wrong", numbers
    neighbours = sampler._neighbours
    cached = "" if sampler._rereading.cached else ", without a cache"
    whole = neighbours is not None and neighbours.padded and neighbours.border is None
    return ("exact" if whole else "apart"), f"{numbers}{cached}{' '.join(ended)}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def run(kind: str, dtypes: Sequence[str]) -> list[tuple[str, str]]:
    """`look` for each dtype, in a process of its own, a fork of this one: the libraries are imported once."""
    here, there = multiprocessing.Pipe(duplex=False)

    def child() -> None:
        torch.set_num_threads(1)
        with TemporaryDirectory() as folder:
            there.send([look(kind, dtype, folder) for dtype in dtypes])

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    there.close()
    try:
        if here.poll(SECONDS):
            found: list[tuple[str, str]] = here.recv()
            return found
        return [("wrong", f"no end within {SECONDS:.0f} s")] * len(dtypes)
    except EOFError:
        process.join()
        return [("wrong", f"the process ended with the status {process.exitcode}")] * len(dtypes)
    finally:
        process.kill()
        process.join()


def main() -> int:
    """Print a line for each type and dtype, then how many ended how; 1 where one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("types", nargs="*", help="without them all")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="without it both")
    args = parser.parse_args()
    dtypes = args.dtype or DTYPES
    ends: Counter[tuple[str, str]] = Counter()
    for kind in args.types or MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        for dtype, (end, text) in zip(dtypes, run(kind, dtypes), strict=True):
            ends[dtype, end] += 1
            print(f"{kind:24} {dtype:8} {end:10} {text}", flush=True)
    for dtype in dtypes:
        print(f"{dtype}: " + ", ".join(f"{n} {end}" for (of, end), n in ends.most_common() if of == dtype))
    return int(any(end == "wrong" for _, end in ends))


if __name__ == "__main__":
    sys.exit(main())
